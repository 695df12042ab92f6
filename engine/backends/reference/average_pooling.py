"""Average pooling and global average pooling.

The divisor of a window counts what lies inside the padded image, or inside the image itself without
`count_include_pad`, exactly as PyTorch's `avg_pool2d`. Means over whole images are summed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ....layers.graph import TensorSpec
from .blocks import channel_blocks, channel_sums
from .max_pooling import as_planes, planes
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec, float64, store
from .windows import Windows, pooling_windows


def _divisors(windows: Windows, axis: int, count_padding: bool, dtype: str) -> Array:
    """Count the pixels of each output's window along one axis."""
    size, padding = windows.image[axis], windows.padding[axis]
    starts = np.arange(windows.output[axis]) * windows.stride[axis] - padding
    ends = np.minimum(starts + windows.kernel[axis], size + padding)
    if not count_padding:
        starts, ends = np.maximum(starts, 0), np.minimum(ends, size)
    return (ends - starts).astype(dtype)


def _plan(op: OpSpec, x: TensorSpec, y: TensorSpec) -> tuple[Windows, Array, Array]:
    windows = pooling_windows((x.shape[2], x.shape[3]), (y.shape[2], y.shape[3]), op.attrs)
    counted = op.attrs["count_include_pad"]
    return (
        windows,
        _divisors(windows, 0, counted, op.dtype)[:, None],
        _divisors(windows, 1, counted, op.dtype),
    )


def _forward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    windows, rows, columns = _plan(op, op.inputs[0], op.outputs[0])
    _, pieces = planes(windows, math.prod(op.inputs[0].shape[:2]))
    taps = windows.taps(0, windows.output[0])

    def run(x: Array, y: Array, divisor: Array) -> None:
        source, target = as_planes(x), as_planes(y)
        np.multiply(rows, columns, out=divisor)
        for piece in pieces:
            values, made = source[piece], target[piece]
            made.fill(0)
            for tap in taps:
                part = made[:, tap.outputs[0], tap.outputs[1]]
                np.add(part, values[:, tap.inputs[0], tap.inputs[1]], out=part)
            np.divide(made, divisor, out=made)

    return (NumpyKernel("taps", run, (TensorSpec(windows.output, op.dtype),)),)


def _backward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    windows, rows, columns = _plan(op, op.outputs[0], op.inputs[0])
    shape, pieces = planes(windows, math.prod(op.inputs[0].shape[:2]))
    taps = windows.taps(0, windows.output[0])

    def run(dy: Array, dx: Array, divisor: Array, shares: Array) -> None:
        above, below = as_planes(dy), as_planes(dx)
        np.multiply(rows, columns, out=divisor)
        below.fill(0)
        for piece in pieces:
            share, made = shares[: piece.stop - piece.start], below[piece]
            np.divide(above[piece], divisor, out=share)
            for tap in taps:
                pixels = made[:, tap.inputs[0], tap.inputs[1]]
                np.add(pixels, share[:, tap.outputs[0], tap.outputs[1]], out=pixels)

    return (NumpyKernel("taps", run, (TensorSpec(windows.output, op.dtype), TensorSpec(shape, op.dtype))),)


def _global(op: OpSpec) -> tuple[NumpyKernel, ...]:
    images, channels, height, width = op.inputs[0].shape
    rows, pixels = images * channels, height * width
    elements, blocks = channel_blocks(1, rows, pixels)

    def run(x: Array, y: Array, buffer: Array, total: Array, part: Array) -> None:
        channel_sums(x.reshape(1, rows, pixels), blocks, buffer, total, part)
        np.divide(total, pixels, out=total)
        store(y.reshape(rows), total)

    return (NumpyKernel("blocks", run, (float64(elements), float64(rows), float64(rows))),)


def _global_backward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    _, _, height, width = op.outputs[0].shape

    def run(dy: Array, dx: Array) -> None:
        np.divide(dy, height * width, out=dx)

    return (NumpyKernel("broadcast", run),)


AVERAGE_POOLING: Mapping[str, Implementation] = MappingProxyType(
    {
        "avg_pool": _forward,
        "avg_pool_backward": _backward,
        "global_avg_pool": _global,
        "global_avg_pool_backward": _global_backward,
    }
)
