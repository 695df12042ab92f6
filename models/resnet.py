"""Residual networks of any depth.

Two variants. "today": 224² images, the stride on the 3×3 convolution, batch norm eps 1e-5, stem pooling padded by 1,
He over fan out; parameter names as in torchvision. "paper": the family of the SuperNeurons depth experiment, 227²
images, the stride on a block's first convolution, eps 1e-3, stem pooling without padding, Xavier. The last pooling
takes the mean over the whole map, which is 7² at either size; images from 32² up work.

Sources: He et al., 2015; Wang et al., "SuperNeurons", 2018, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..layers import (
    BatchNorm2d,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    He,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Residual,
    Sequential,
    Uniform,
    Xavier,
)
from ..memory.arguments import LARGEST_SIZE, Number, Whole, is_whole, show
from ..memory.errors import ConfigError
from .variant import Variant, check_variant, read_classes

Block = Literal["basic", "bottleneck"]
Stages = tuple[int, int, int, int]

WIDTHS = (64, 128, 256, 512)
"""Filters of the first convolution of the blocks of each stage."""
MOST_BLOCKS = 2**16
"""Blocks of a stage."""
EXPANSION = 4
"""Outputs of a bottleneck block per filter of its first convolution."""

RESNET_1001: Stages = (12, 64, 245, 12)
"""He's 1001-layer network has three stages for 32² images; this one has four for 224² and the same depth 3 · 333 + 2.

The counts are those of the 1010-layer network of the SuperNeurons table, (12, 64, 248, 12), less three blocks.
"""
RESNET_2500: Stages = (6, 32, 788, 6)
"""The deepest network of the SuperNeurons depth experiment; depth 2498."""


def depth(stages: Sequence[int], block: Block = "bottleneck") -> int:
    """Convolutions and fully connected layers on the longest path: 3 (or 2) per block, the stem and the classifier."""
    return sum(stages) * (3 if block == "bottleneck" else 2) + 2


def resnet(
    stages: Stages,
    classes: int = 1000,
    *,
    variant: Variant = "today",
    block: Block = "bottleneck",
    residual_scale: float = 1.0,
    name: str = "",
) -> Sequential:
    """A residual network with the given number of blocks in its four stages, for 224² ("today") or 227² images.

    Args:
        stages: blocks in each stage, so depth 3 · Σ + 2 with bottleneck blocks.
        classes: outputs.
        variant: "today" or "paper", as the module says.
        block: "bottleneck" (1×1, 3×3, 1×1) or "basic" (3×3, 3×3).
        residual_scale: first value of the weight of each block's last batch norm; 0 makes every block start as the
            identity, which is what a very deep network needs.
        name: empty makes one of the depth and the blocks.

    Raises:
        ConfigError: stages are not four positive whole numbers; an unknown variant or block.
    """
    given = tuple(stages) if isinstance(stages, Iterable) else ()
    if len(given) != 4 or not all(is_whole(n, 1, MOST_BLOCKS) for n in given):
        expected = f"four positive whole numbers of blocks, up to {MOST_BLOCKS}"
        raise ConfigError("resnet", expected, show(stages), "ResNet-50 is (3, 4, 6, 3).")
    found = tuple(int(n) for n in given)
    if block not in ("basic", "bottleneck"):
        raise ConfigError("resnet", "block 'basic' or 'bottleneck'", repr(block))
    paper = check_variant("resnet", variant) == "paper"
    read_classes("resnet", classes)
    residual_scale = Number().read("resnet", "residual_scale", residual_scale)
    style = _PAPER if paper else _TODAY
    layers: list[Layer] = [
        style.convolution(64, 7, 2, "conv1"),
        BatchNorm2d(eps=style.eps, name="bn1"),
        ReLU(name="relu"),
        MaxPool2d(3, 2, padding=0 if paper else 1, name="maxpool"),
    ]
    channels = 64
    for number, (count, width) in enumerate(zip(found, WIDTHS, strict=True)):
        outputs = width * EXPANSION if block == "bottleneck" else width
        blocks = []
        for position in range(count):
            stride = 2 if position == 0 and number > 0 else 1
            body = style.bottleneck if block == "bottleneck" else style.basic
            blocks.append(style.residual(body(width, stride, residual_scale), channels, outputs, stride))
            channels = outputs
        layers.append(Sequential(*blocks, name=f"layer{number + 1}"))
    layers += [
        GlobalAvgPool2d(name="avgpool"),
        Flatten(name="flatten"),
        Linear(classes, initializer=Xavier() if paper else Uniform(), name="fc"),
    ]
    return Sequential(*layers, name=name or f"resnet{depth(found, block)}-{'-'.join(map(str, found))}")


@dataclass(frozen=True, slots=True)
class _Style:
    """What the variants differ in."""

    initializer: He | Xavier
    eps: float
    stride_first: bool

    def convolution(self, out_channels: int, kernel: int, stride: int, name: str = "") -> Conv2d:
        return Conv2d(
            out_channels,
            kernel,
            stride=stride,
            padding=kernel // 2,
            bias=False,
            initializer=self.initializer,
            name=name,
        )

    def bottleneck(self, width: int, stride: int, scale: float) -> Sequential:
        first, second = (stride, 1) if self.stride_first else (1, stride)
        return Sequential(
            self.convolution(width, 1, first, "conv1"),
            BatchNorm2d(eps=self.eps, name="bn1"),
            ReLU(name="relu1"),
            self.convolution(width, 3, second, "conv2"),
            BatchNorm2d(eps=self.eps, name="bn2"),
            ReLU(name="relu2"),
            self.convolution(width * EXPANSION, 1, 1, "conv3"),
            BatchNorm2d(eps=self.eps, scale=scale, name="bn3"),
        )

    def basic(self, width: int, stride: int, scale: float) -> Sequential:
        return Sequential(
            self.convolution(width, 3, stride, "conv1"),
            BatchNorm2d(eps=self.eps, name="bn1"),
            ReLU(name="relu1"),
            self.convolution(width, 3, 1, "conv2"),
            BatchNorm2d(eps=self.eps, scale=scale, name="bn2"),
        )

    def residual(self, body: Sequential, channels: int, outputs: int, stride: int) -> Residual:
        """`body` beside the identity, or beside a 1×1 convolution where shapes change."""
        shortcut = None
        if stride != 1 or channels != outputs:
            projection = (self.convolution(outputs, 1, stride), BatchNorm2d(eps=self.eps))
            shortcut = Sequential(*projection, name="downsample")
        return Residual(body, shortcut, ReLU(name="relu"))


_TODAY = _Style(He("out"), 1e-5, stride_first=False)
_PAPER = _Style(Xavier(), 1e-3, stride_first=True)


def resnet18(classes: int = 1000, *, variant: Variant = "today", residual_scale: float = 1.0) -> Sequential:
    """ResNet-18: basic blocks (2, 2, 2, 2), 224² images, 11,689,512 parameters. Source: He et al., 2015."""
    return resnet((2, 2, 2, 2), classes, variant=variant, block="basic", residual_scale=residual_scale, name="resnet18")


def resnet34(classes: int = 1000, *, variant: Variant = "today", residual_scale: float = 1.0) -> Sequential:
    """ResNet-34: basic blocks (3, 4, 6, 3), 224² images, 21,797,672 parameters. Source: He et al., 2015."""
    return resnet((3, 4, 6, 3), classes, variant=variant, block="basic", residual_scale=residual_scale, name="resnet34")


def resnet50(classes: int = 1000, *, variant: Variant = "today", residual_scale: float = 1.0) -> Sequential:
    """ResNet-50: bottleneck blocks (3, 4, 6, 3), 224² images, 25,557,032 parameters. Source: He et al., 2015."""
    return resnet((3, 4, 6, 3), classes, variant=variant, residual_scale=residual_scale, name="resnet50")


def resnet101(classes: int = 1000, *, variant: Variant = "today", residual_scale: float = 1.0) -> Sequential:
    """ResNet-101: bottleneck blocks (3, 4, 23, 3), 224² images, 44,549,160 parameters. Source: He et al., 2015."""
    return resnet((3, 4, 23, 3), classes, variant=variant, residual_scale=residual_scale, name="resnet101")


def resnet152(classes: int = 1000, *, variant: Variant = "today", residual_scale: float = 1.0) -> Sequential:
    """ResNet-152: bottleneck blocks (3, 8, 36, 3), 224² images, 60,192,808 parameters. Source: He et al., 2015."""
    return resnet((3, 8, 36, 3), classes, variant=variant, residual_scale=residual_scale, name="resnet152")


def resnet1001(classes: int = 1000, *, variant: Variant = "today", residual_scale: float = 1.0) -> Sequential:
    """ResNet-1001: bottleneck blocks (12, 64, 245, 12), 224² images, depth 1001; see `RESNET_1001`."""
    return resnet(RESNET_1001, classes, variant=variant, residual_scale=residual_scale, name="resnet1001")


def resnet2500(classes: int = 1000, *, variant: Variant = "paper", residual_scale: float = 1.0) -> Sequential:
    """ResNet2500: bottleneck blocks (6, 32, 788, 6), 227² images, 920.6 million parameters.

    Source: Wang et al., "SuperNeurons", 2018: the deepest network of its depth experiment, "10⁴ layers".
    """
    return resnet(RESNET_2500, classes, variant=variant, residual_scale=residual_scale, name="resnet2500")


def small_resnet(
    classes: int = 10,
    *,
    widths: tuple[int, ...] = (16, 32, 64),
    blocks: int = 2,
    residual_scale: float = 1.0,
) -> Sequential:
    """A residual network for 8² to 32² images: 3×3 stem, no pooling, basic blocks, each later stage at half the size.

    With three stages the depth is 6 · blocks + 2: 3 blocks and 32² images make ResNet-20 for CIFAR, except that its
    shortcuts have no parameters. Source: He et al., 2015, section 4.2.

    Args:
        classes: outputs.
        widths: filters of each stage.
        blocks: residual blocks in each stage.
        residual_scale: as for `resnet`.

    Raises:
        ConfigError: no stage, or fewer than one block.
    """
    if not widths or not is_whole(blocks, 1, MOST_BLOCKS):
        found = f"widths={show(widths)}, blocks={show(blocks)}"
        raise ConfigError("small_resnet", f"at least one width and one block, up to {MOST_BLOCKS}", found)
    read_classes("small_resnet", classes)
    widths = tuple(Whole(1, LARGEST_SIZE).read("small_resnet", "widths", width) for width in widths)
    residual_scale = Number().read("small_resnet", "residual_scale", residual_scale)
    style = _TODAY
    layers: list[Layer] = [
        style.convolution(widths[0], 3, 1, "conv1"),
        BatchNorm2d(eps=style.eps, name="bn1"),
        ReLU(name="relu"),
    ]
    channels = widths[0]
    for number, width in enumerate(widths):
        stage = []
        for position in range(blocks):
            stride = 2 if position == 0 and number > 0 else 1
            stage.append(style.residual(style.basic(width, stride, residual_scale), channels, width, stride))
            channels = width
        layers.append(Sequential(*stage, name=f"layer{number + 1}"))
    layers += [GlobalAvgPool2d(name="avgpool"), Flatten(name="flatten"), Linear(classes, name="fc")]
    return Sequential(*layers, name="small_resnet")
