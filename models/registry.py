"""Networks by name, for the command line and for scripts.

A name is a key of `MODELS`, or `resnet:6,32,788,6` for a residual network with any number of bottleneck blocks in its
four stages.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from ..layers import Sequential
from ..memory.errors import ConfigError
from .alexnet import alexnet
from .preact_resnet import (
    preact_resnet18,
    preact_resnet50,
    preact_resnet101,
    preact_resnet152,
    preact_resnet164,
    preact_resnet200,
    preact_resnet1001,
)
from .resnet import (
    resnet,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
    resnet1001,
    resnet2500,
    small_resnet,
)
from .vgg import vgg11, vgg13, vgg16, vgg19

RESNET_PREFIX = "resnet:"

_BOTH_VARIANTS: Mapping[str, int] = MappingProxyType({"today": 224, "paper": 227})


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What is known of a network before it is built.

    Attributes:
        function: makes the network; takes `classes`, and `variant` where there are two.
        description: one line for people.
        variants: default height and width of the images for each variant; the first variant is the default.
        smallest_image: height and width of the smallest images that work in every variant.
        channels: default channels of the images.
        classes: default number of classes.
    """

    function: Callable[..., Sequential]
    description: str
    variants: Mapping[str, int]
    smallest_image: int = 32
    channels: int = 3
    classes: int = 1000

    @property
    def image_side(self) -> int:
        """Default height and width of the images of the default variant, in pixels."""
        return next(iter(self.variants.values()))


def _today(side: int) -> Mapping[str, int]:
    return MappingProxyType({"today": side})


MODELS: Mapping[str, ModelEntry] = MappingProxyType(
    {
        "alexnet": ModelEntry(alexnet, "AlexNet, 8 layers", _BOTH_VARIANTS, smallest_image=64),
        "vgg11": ModelEntry(vgg11, "VGG-11", _today(224)),
        "vgg11_bn": ModelEntry(partial(vgg11, batch_norm=True), "VGG-11 with batch norm", _today(224)),
        "vgg13": ModelEntry(vgg13, "VGG-13", _today(224)),
        "vgg13_bn": ModelEntry(partial(vgg13, batch_norm=True), "VGG-13 with batch norm", _today(224)),
        "vgg16": ModelEntry(vgg16, "VGG-16", _today(224)),
        "vgg16_bn": ModelEntry(partial(vgg16, batch_norm=True), "VGG-16 with batch norm", _today(224)),
        "vgg19": ModelEntry(vgg19, "VGG-19", _today(224)),
        "vgg19_bn": ModelEntry(partial(vgg19, batch_norm=True), "VGG-19 with batch norm", _today(224)),
        "resnet18": ModelEntry(resnet18, "ResNet-18, basic blocks (2, 2, 2, 2)", _BOTH_VARIANTS),
        "resnet34": ModelEntry(resnet34, "ResNet-34, basic blocks (3, 4, 6, 3)", _BOTH_VARIANTS),
        "resnet50": ModelEntry(resnet50, "ResNet-50, bottleneck blocks (3, 4, 6, 3)", _BOTH_VARIANTS),
        "resnet101": ModelEntry(resnet101, "ResNet-101, bottleneck blocks (3, 4, 23, 3)", _BOTH_VARIANTS),
        "resnet152": ModelEntry(resnet152, "ResNet-152, bottleneck blocks (3, 8, 36, 3)", _BOTH_VARIANTS),
        "resnet1001": ModelEntry(resnet1001, "ResNet-1001, bottleneck blocks (12, 64, 245, 12)", _BOTH_VARIANTS),
        "resnet2500": ModelEntry(
            resnet2500,
            "ResNet2500, bottleneck blocks (6, 32, 788, 6)",
            MappingProxyType({"paper": 227, "today": 224}),
        ),
        "preact_resnet18": ModelEntry(
            preact_resnet18, "ResNet-18, activation first, basic units (2, 2, 2, 2)", _today(224)
        ),
        "preact_resnet50": ModelEntry(
            preact_resnet50, "ResNet-50, activation first, bottleneck units (3, 4, 6, 3)", _today(224)
        ),
        "preact_resnet101": ModelEntry(
            preact_resnet101, "ResNet-101, activation first, bottleneck units (3, 4, 23, 3)", _today(224)
        ),
        "preact_resnet152": ModelEntry(
            preact_resnet152, "ResNet-152, activation first, bottleneck units (3, 8, 36, 3)", _today(224)
        ),
        "preact_resnet200": ModelEntry(
            preact_resnet200, "ResNet-200, activation first, bottleneck units (3, 24, 36, 3)", _today(224)
        ),
        "preact_resnet164": ModelEntry(
            preact_resnet164,
            "ResNet-164 for 32² images, activation first, bottleneck units (18, 18, 18)",
            _today(32),
            smallest_image=8,
            classes=10,
        ),
        "preact_resnet1001": ModelEntry(
            preact_resnet1001,
            "ResNet-1001 for 32² images, activation first, bottleneck units (111, 111, 111)",
            _today(32),
            smallest_image=8,
            classes=10,
        ),
        "small_resnet": ModelEntry(
            small_resnet, "small residual network for 8² to 32² images", _today(32), smallest_image=8, classes=10
        ),
    }
)


def find_model(name: str) -> ModelEntry:
    """The entry of a name, or of `resnet:n1,n2,n3,n4`.

    Raises:
        ConfigError: no network has this name; says which names are near.
    """
    if name.startswith(RESNET_PREFIX):
        return _any_resnet(name)
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(name.lower(), MODELS, n=3, cutoff=0.5)
    known = f"one of {', '.join(MODELS)}, or resnet:n1,n2,n3,n4"
    raise ConfigError("model", known, repr(name), f"Did you mean {' or '.join(near)}?" if near else "")


def build_model(name: str, classes: int | None = None, variant: str | None = None, **options: Any) -> Sequential:
    """Make the network of a name.

    Args:
        name: a key of `MODELS`, or `resnet:n1,n2,n3,n4`.
        classes: outputs; None takes the network's default.
        variant: "today" or "paper"; None takes the network's default.
        options: whatever else its function takes, such as `residual_scale`.

    Raises:
        ConfigError: an unknown name, a variant or an option that this network does not have.
    """
    entry = find_model(name)
    if variant is not None and variant not in entry.variants:
        raise ConfigError(name, f"variant {' or '.join(map(repr, entry.variants))}", repr(variant))
    arguments: dict[str, Any] = {"classes": entry.classes if classes is None else classes, **options}
    if len(entry.variants) > 1 and variant is not None:
        arguments["variant"] = variant
    try:
        inspect.signature(entry.function).bind(**arguments)
    except TypeError as error:
        raise ConfigError(name, "options that this network has", str(error)) from None
    return entry.function(**arguments)


def _any_resnet(name: str) -> ModelEntry:
    parts = name.removeprefix(RESNET_PREFIX).split(",")
    if len(parts) != 4 or not all(p.strip().isdecimal() and len(p) < 10 and int(p) > 0 for p in parts):
        expected = "resnet: and four positive whole numbers of blocks"
        raise ConfigError("model", expected, repr(name), "ResNet2500 is resnet:6,32,788,6.")
    n1, n2, n3, n4 = (int(p) for p in parts)
    function = partial(resnet, (n1, n2, n3, n4))
    return ModelEntry(function, f"residual network, bottleneck blocks ({n1}, {n2}, {n3}, {n4})", _BOTH_VARIANTS)
