"""Max pooling. The index says where inside the window the largest value lies: row · window width + column.

A NaN wins over every number, the first in row order wins among equals and among NaNs, and padding never wins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ....layers.graph import TensorSpec
from .blocks import BUFFER_ELEMENTS, Spans
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec
from .windows import Tap, Windows, pooling_windows


def planes(windows: Windows, count: int) -> tuple[tuple[int, int, int], Spans]:
    """Cut `count` planes of outputs: the shape of the largest piece, and the pieces; a plane is never cut."""
    step = min(count, max(1, BUFFER_ELEMENTS // math.prod(windows.output)))
    return (step, *windows.output), Spans(count, step)


def as_planes(x: Array) -> Array:
    """View images as (N · C, H, W)."""
    return x.reshape(-1, x.shape[2], x.shape[3])


def _forward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    images, channels, height, width = op.inputs[0].shape
    y, index = op.outputs
    windows = pooling_windows((height, width), (y.shape[2], y.shape[3]), op.attrs)
    shape, pieces = planes(windows, images * channels)
    taps = windows.taps(0, windows.output[0])
    numbers = [np.dtype(index.dtype).type(tap.row * windows.kernel[1] + tap.column) for tap in taps]
    rows = _first_taps(windows, 0).astype(index.dtype)[:, None] * np.dtype(index.dtype).type(windows.kernel[1])
    columns = _first_taps(windows, 1).astype(index.dtype)

    def run(x: Array, y: Array, index: Array, better: Array, settled: Array) -> None:
        source, largest, places = as_planes(x), as_planes(y), as_planes(index)
        largest.fill(-np.inf)
        # A window full of −inf has no larger value; its place is the first that is not padding.
        np.copyto(places, rows)
        np.add(places, columns, out=places)
        for piece in pieces:
            values, found, at = source[piece], largest[piece], places[piece]
            count = piece.stop - piece.start
            for tap, number in zip(taps, numbers, strict=True):
                new, old = values[:, tap.inputs[0], tap.inputs[1]], found[:, tap.outputs[0], tap.outputs[1]]
                replaced, kept = _part(better, count, tap), _part(settled, count, tap)
                np.less_equal(new, old, out=replaced)
                np.not_equal(old, old, out=kept)
                np.logical_or(replaced, kept, out=replaced)
                np.logical_not(replaced, out=replaced)
                np.copyto(old, new, where=replaced)
                np.copyto(at[:, tap.outputs[0], tap.outputs[1]], number, where=replaced)

    return (NumpyKernel("taps", run, (TensorSpec(shape, "bool"),) * 2),)


def _part(scratch: Array, count: int, tap: Tap) -> Array:
    return scratch[:count, tap.outputs[0], tap.outputs[1]]


def _first_taps(windows: Windows, axis: int) -> Array:
    """Find for each output along an axis the first position of its window that is not padding."""
    starts = np.arange(windows.output[axis]) * windows.stride[axis] - windows.padding[axis]
    return np.maximum(0, -starts)


def _backward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    """Dx ← 0; dx[where the index of a window points] += dy, tap by tap in row order."""
    dy, index = op.inputs
    images, channels, height, width = op.outputs[0].shape
    windows = pooling_windows((height, width), (dy.shape[2], dy.shape[3]), op.attrs)
    shape, pieces = planes(windows, images * channels)
    taps = windows.taps(0, windows.output[0])
    numbers = [np.dtype(index.dtype).type(tap.row * windows.kernel[1] + tap.column) for tap in taps]

    def run(dy: Array, index: Array, dx: Array, chosen: Array, share: Array) -> None:
        above, places, below = as_planes(dy), as_planes(index), as_planes(dx)
        below.fill(0)
        for piece in pieces:
            gradient, at, made = above[piece], places[piece], below[piece]
            count = piece.stop - piece.start
            for tap, number in zip(taps, numbers, strict=True):
                here, part = _part(chosen, count, tap), _part(share, count, tap)
                np.equal(at[:, tap.outputs[0], tap.outputs[1]], number, out=here)
                part.fill(0)
                np.copyto(part, gradient[:, tap.outputs[0], tap.outputs[1]], where=here)
                pixels = made[:, tap.inputs[0], tap.inputs[1]]
                np.add(pixels, part, out=pixels)

    return (NumpyKernel("taps", run, (TensorSpec(shape, "bool"), TensorSpec(shape, dy.dtype))),)


MAX_POOLING: Mapping[str, Implementation] = MappingProxyType({"max_pool": _forward, "max_pool_backward": _backward})
