"""The layouts in which an operation is computed by code that the library compiles for the processor.

The layouts of a network follow from its forward convolutions. What must work in them, and has there but code for any
processor, is asked for in others: a conversion costs a hundredth of what it saves. Which code there is follows from the
library's name of its first implementation, by shape and instruction set, and nothing is timed. Before AVX2 no gradient
of a convolution is compiled for blocked layouts; with AVX2 that of a weight is not where an image has fewer rows than
the kernel; on plain layouts both are products of matrices everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ....layers.operations import Attrs
from .convolution import convolution_backward_data, convolution_backward_weights
from .handles import PrimitiveDescriptor
from .layouts import PLAIN, Layouts
from .normalization import WITH_RELU, normalization_forward, normalization_gradient
from .pooling import MAX, average_algorithm, pooling_forward
from .rows import count_read_rows


@dataclass(frozen=True, slots=True)
class ForwardLayouts:
    """What a forward convolution has: the layouts of its image and output, and its attributes."""

    image: str
    output: str
    attrs: Attrs


@dataclass(frozen=True, slots=True)
class GradientLayouts:
    """How a gradient of a convolution is computed.

    Attributes:
        image: layout of the convolution's image, or of its gradient.
        output: layout of the gradient of the convolution's output.
        attrs: of the operation: in a layout with more rows there is less padding.
        found: the library's choice, which says the layout of the weight.
    """

    image: str
    output: str
    attrs: Attrs
    found: PrimitiveDescriptor


def choose_data_gradient(
    layouts: Layouts, image: tuple[int, ...], weight: tuple[int, ...], output: tuple[int, ...], first: ForwardLayouts
) -> GradientLayouts:
    """Choose for the gradient of an image: the layouts of the forward pass, or where it is slow there, plain ones."""

    def describe(below: str, above: str, attrs: Attrs) -> PrimitiveDescriptor:
        undecided = layouts.engine.describe_undecided(weight)
        dx, dy = layouts.of(image, below), layouts.of(output, above)
        return convolution_backward_data(layouts.engine, dx, undecided, dy, attrs)

    return _choose(describe, [(first.image, first.output, first.attrs), (PLAIN, PLAIN, first.attrs)])


def choose_weight_gradient(
    layouts: Layouts,
    image: tuple[int, ...],
    weight: tuple[int, ...],
    bias: tuple[int, ...] | None,
    output: tuple[int, ...],
    first: ForwardLayouts,
) -> GradientLayouts:
    """Choose for the gradient of a weight: the layouts of the forward pass, if it is fast there.

    Otherwise the image gets more rows, which keeps the workspace small, or both are plain.
    """

    def describe(below: str, above: str, attrs: Attrs) -> PrimitiveDescriptor:
        undecided = layouts.engine.describe_undecided(weight)
        db = None if bias is None else layouts.of(bias, PLAIN)
        x, dy = layouts.of(image, below), layouts.of(output, above)
        return convolution_backward_weights(layouts.engine, x, undecided, db, dy, attrs)

    def list_ways() -> Iterator[tuple[str, str, Attrs]]:
        yield first.image, first.output, first.attrs
        if PLAIN not in (first.image, first.output):
            down, across = first.attrs["padding"]
            taller = layouts.add_taller(image, down, count_read_rows(weight, output, first.attrs))
            yield taller, first.output, {**first.attrs, "padding": (0, across)}
        yield PLAIN, PLAIN, first.attrs

    return _choose(describe, list_ways())


def _choose(
    describe: Callable[[str, str, Attrs], PrimitiveDescriptor], ways: Iterable[tuple[str, str, Attrs]]
) -> GradientLayouts:
    """Take the first way that is compiled for the processor, else the first; those behind it are not even described."""
    made = []
    for image, output, attrs in ways:
        made.append(GradientLayouts(image, output, attrs, describe(image, output, attrs)))
        if made[-1].found.is_compiled:
            return made[-1]
    return made[0]


NORMALIZING: Mapping[str, int] = MappingProxyType(
    {"batch_norm_training": 0, "batch_norm_inference": 0, "batch_norm_relu": WITH_RELU, "batch_norm_relu_inference": 0}
)
"""The kinds of batch norms, with the library's flags."""
POOLING = ("max_pool", "avg_pool", "global_avg_pool")


def choose_image_layout(
    layouts: Layouts, kind: str, attrs: Attrs, image: tuple[int, ...], output: tuple[int, ...], given: str
) -> str:
    """Choose the layout in which a batch norm or a pooling reads its image: the given one, blocked or plain.

    A convolution of few channels may leave a plain image, and before AVX2 a batch norm is not compiled for channels
    that fill no block. The gradient is computed in the same layout and counts too. An image of fewer channels than a
    block has stays plain, since in blocks it would be mostly padding.
    """
    if len(image) != 4 or not (kind in POOLING or kind in NORMALIZING):
        return given
    best, least = given, None
    blocked = layouts.add_blocked(image) if image[1] >= layouts.engine.block else given
    for name in dict.fromkeys((given, blocked, PLAIN)):
        x = layouts.of(image, name)
        if kind in POOLING:
            y = layouts.of(output, PLAIN if name == PLAIN else layouts.add_blocked(output))
            algorithm = MAX if kind == "max_pool" else average_algorithm(attrs)
            passes = [pooling_forward(layouts.engine, x, y, attrs, algorithm)[0]]
        else:
            flags = NORMALIZING[kind]
            passes = [normalization_forward(layouts.engine, x, attrs, flags=flags)]
            if kind in ("batch_norm_training", "batch_norm_relu"):
                passes.append(normalization_gradient(layouts.engine, x, x, x, attrs, flags))
        slowness = max(_rank_slowness(made) for made in passes)
        if least is None or slowness < least:
            best, least = name, slowness
        if not least:
            break
    return best


def _rank_slowness(made: PrimitiveDescriptor) -> int:
    """Return 0 for code that is compiled for the processor, 2 for reference code, 1 for what lies between."""
    return 0 if made.is_compiled else 2 if made.implementation.startswith("ref") else 1
