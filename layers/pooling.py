"""Max, average and global average pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import ClassVar

from ..memory.arguments import Argument, Maybe, Pair, Switch
from .builder import GraphBuilder, Layer
from .convolution import NO_SAME, Sizes, pair
from .graph import Op, TensorSpec
from .operations import Attrs, BackwardBuilder, OpKind, ShapeRule, Specs


def pooled_size(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """Windows along one axis; with `ceil_mode` the last one may hang over, but must begin inside the padded input."""
    span = size + 2 * padding - kernel
    if span < 0 and not (ceil_mode and span > -stride):
        return 0
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1
    return count


def _pool(inputs: Specs, attrs: Attrs) -> TensorSpec:
    n, channels, height, width = inputs[0].shape
    kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ShapeRule(f"padding of at most half the window {kernel}", f"{padding}")
    made = [
        pooled_size(size, kernel[a], stride[a], padding[a], attrs["ceil_mode"])
        for a, size in enumerate((height, width))
    ]
    if min(made) < 1:
        raise ShapeRule(
            f"an image that a {kernel[0]}×{kernel[1]} window fits in",
            f"{height}×{width} with padding {padding}",
            "Use larger images or fewer pooling layers.",
        )
    return TensorSpec((n, channels, *made), inputs[0].dtype)


def _max_shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    y = _pool(inputs, attrs)
    return y, TensorSpec(y.shape, "uint8" if math.prod(attrs["kernel"]) <= 256 else "int32")


def _average_shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (_pool(inputs, attrs),)


def _global_shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (TensorSpec((*inputs[0].shape[:2], 1, 1), inputs[0].dtype),)


def _window_flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    return float(math.prod(outputs[0].shape) * math.prod(attrs["kernel"]))


def _input_flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    return float(max(math.prod(inputs[0].shape), math.prod(outputs[0].shape)))


def _max_backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    return builder.emit("max_pool_backward", (gradients[0], op.outputs[1]), op.inputs, op.attrs)


def _average_backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    return builder.emit(f"{op.kind}_backward", (gradients[0],), op.inputs, op.attrs)


MAX_POOL = OpKind("max_pool", _max_shapes, _max_backward, flops=_window_flops)
AVG_POOL = OpKind("avg_pool", _average_shapes, _average_backward, flops=_window_flops)
GLOBAL_AVG_POOL = OpKind("global_avg_pool", _global_shapes, _average_backward, flops=_input_flops)
KINDS = (
    MAX_POOL,
    AVG_POOL,
    GLOBAL_AVG_POOL,
    OpKind("max_pool_backward", flops=_input_flops),
    OpKind("avg_pool_backward", flops=_input_flops),
    OpKind("global_avg_pool_backward", flops=_input_flops),
)


WINDOW: Mapping[str, Argument] = MappingProxyType(
    {"kernel_size": Pair(), "stride": Maybe(Pair()), "padding": Pair(0, NO_SAME), "ceil_mode": Switch()}
)
"""What the arguments of both layers with windows may be."""


@dataclass(frozen=True)
class MaxPool2d(Layer):
    """Largest value of each window; the backward pass keeps one index per output instead of the input.

    Shapes: (N, C, H, W) → (N, C, H', W'), H' = ⌊(H + 2·padding − kernel) / stride⌋ + 1, or ⌈…⌉ with `ceil_mode`.
    Of equal values the first in row order wins. What a NaN among them makes is the backend's affair: it wins on
    numpy, oneDNN leaves it out.

    Attributes:
        kernel_size: one number or (height, width); so too stride and padding.
        stride: None takes the kernel's size.
    """

    arguments: ClassVar[Mapping[str, Argument]] = WINDOW
    pytorch: ClassVar[tuple[str, ...]] = (
        *("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode"),
    )
    kernel_size: Sizes
    stride: Sizes | None = None
    padding: Sizes = 0
    _: KW_ONLY
    ceil_mode: bool = False

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the pooling; raises ShapeError for inputs that do not fit."""
        return builder.apply(MAX_POOL, (builder.require_images(x),), _attrs(self))


@dataclass(frozen=True)
class AvgPool2d(Layer):
    """Mean of each window.

    Shapes: as `MaxPool2d`.

    Attributes:
        kernel_size: one number or (height, width); so too stride and padding.
        stride: None takes the kernel's size.
        count_include_pad: whether the zeros of the padding count in the mean.
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType({**WINDOW, "count_include_pad": Switch()})
    pytorch: ClassVar[tuple[str, ...]] = (
        *("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    )
    kernel_size: Sizes
    stride: Sizes | None = None
    padding: Sizes = 0
    _: KW_ONLY
    ceil_mode: bool = False
    count_include_pad: bool = True

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the pooling; raises ShapeError for inputs that do not fit."""
        attrs = {**_attrs(self), "count_include_pad": self.count_include_pad}
        return builder.apply(AVG_POOL, (builder.require_images(x),), attrs)


@dataclass(frozen=True)
class GlobalAvgPool2d(Layer):
    """Mean over each channel's whole image: (N, C, H, W) → (N, C, 1, 1)."""

    pytorch: ClassVar[tuple[str, ...]] = ("output_size",)

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the pooling; raises ShapeError for inputs that are not images."""
        return builder.apply(GLOBAL_AVG_POOL, (builder.require_images(x),))


def _attrs(layer: MaxPool2d | AvgPool2d) -> dict[str, object]:
    stride = layer.kernel_size if layer.stride is None else layer.stride
    return {
        "kernel": pair(layer.kernel_size),
        "stride": pair(stride),
        "padding": pair(layer.padding),
        "ceil_mode": layer.ceil_mode,
    }
