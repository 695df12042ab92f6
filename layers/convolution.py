"""Two-dimensional convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import ClassVar

from ..memory.arguments import LARGEST_SIZE, Argument, Pair, Switch, Whole
from ..memory.errors import ConfigError
from .builder import GraphBuilder, Layer
from .graph import TensorSpec
from .initializers import AN_INITIALIZER, Constant, He, Initializer
from .operations import Attrs, OpKind, ShapeRule, Specs, append_weighted_gradients

Sizes = int | tuple[int, int]
"""A number for both axes, or (height, width)."""
NO_SAME = "Write the number: padding=kernel_size // 2 keeps the size at stride 1 where the kernel is odd."


def pair(sizes: Sizes) -> tuple[int, int]:
    """Return sizes that have been read as (height, width)."""
    return (sizes, sizes) if isinstance(sizes, int) else sizes


def window_outputs(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Positions of a window along one axis: ⌊(size + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, weight = inputs[0], inputs[1]
    n, _, height, width = x.shape
    made = [
        window_outputs(
            size, weight.shape[2 + axis], attrs["stride"][axis], attrs["padding"][axis], attrs["dilation"][axis]
        )
        for axis, size in enumerate((height, width))
    ]
    if min(made) < 1:
        raise ShapeRule(
            f"an image that a {weight.shape[2]}×{weight.shape[3]} kernel fits in",
            f"{height}×{width} with padding {attrs['padding']}",
            "Use larger images, more padding or fewer strides.",
        )
    return (TensorSpec((n, weight.shape[0], *made), x.dtype),)


def _flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    y, weight = outputs[0], inputs[1]
    return 2.0 * math.prod(y.shape) * math.prod(weight.shape[1:])


def _data_flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    dy, weight = inputs
    return 2.0 * math.prod(dy.shape) * math.prod(weight.shape[1:])


def _weights_flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    dy, dw = inputs[1], outputs[0]
    return 2.0 * math.prod(dy.shape) * math.prod(dw.shape[1:])


CONV2D = OpKind("conv2d", _shapes, append_weighted_gradients, flops=_flops, heavy=True)
KINDS = (
    CONV2D,
    OpKind("conv2d_backward_data", flops=_data_flops, heavy=True),
    OpKind("conv2d_backward_weights", flops=_weights_flops, heavy=True),
)


@dataclass(frozen=True)
class Conv2d(Layer):
    """Two-dimensional convolution; the input's channels are inferred.

    y[n, o, p, q] = bias[o] + Σ_{c, i, j} weight[o, c, i, j] · x[n, c, p·stride + i·dilation − padding, …]

    Shapes: (N, C, H, W) → (N, out_channels, H', W'), weight (out_channels, C / groups, kh, kw), bias (out_channels,);
    H' = ⌊(H + 2·padding − dilation·(kh − 1) − 1) / stride⌋ + 1.

    Attributes:
        out_channels: number of filters.
        kernel_size: one number or (height, width); so too stride, padding and dilation.
        groups: the channels are cut into this many groups that do not mix.
        bias: whether a number per filter is added.
        initializer: of the weight; the bias starts at 0.
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType(
        {
            "out_channels": Whole(1, LARGEST_SIZE),
            "kernel_size": Pair(),
            "stride": Pair(),
            "padding": Pair(0, NO_SAME),
            "dilation": Pair(),
            "groups": Whole(1, LARGEST_SIZE),
            "bias": Switch(),
            "initializer": AN_INITIALIZER,
        }
    )
    pytorch: ClassVar[tuple[str, ...]] = (
        *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias"),
        *("padding_mode", "device", "dtype"),
    )
    out_channels: int
    kernel_size: Sizes
    _: KW_ONLY
    stride: Sizes = 1
    padding: Sizes = 0
    dilation: Sizes = 1
    groups: int = 1
    bias: bool = True
    initializer: Initializer = He()

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the convolution.

        Raises:
            ConfigError: channels do not divide into `groups`.
            ShapeError: the input is not (N, C, H, W) or too small.
        """
        channels = builder.spec(builder.require_images(x)).shape[1]
        for name, count in (("input channels", channels), ("out_channels", self.out_channels)):
            if count % self.groups:
                raise ConfigError(builder.where, f"{name} that divide into groups={self.groups}", repr(count))
        shape = (self.out_channels, channels // self.groups, *pair(self.kernel_size))
        weight = builder.parameter("weight", shape, self.initializer)
        bias = (builder.parameter("bias", (self.out_channels,), Constant(0.0)),) if self.bias else ()
        attrs = {
            "stride": pair(self.stride),
            "padding": pair(self.padding),
            "dilation": pair(self.dilation),
            "groups": self.groups,
        }
        return builder.apply(CONV2D, (x, weight, *bias), attrs)
