"""Sums and means of each channel over the pixels of channels-last images, in float64 and in one order."""

from __future__ import annotations

import numpy as np

from .program import MOST_BLOCKS, KernelCall, Pointer, Program, blocked, pointers

LANES = 32
"""Channels that a block takes."""
LEAST_ROWS = 64
"""Rows of a split, where there are as many: 8 for each line of a block."""


def channel_means(groups: int, rows: int, channels: int, divisor: int | None = None) -> Program:
    """The sums of each group of rows, divided by the rows of a group or by `divisor`.

    Operands: x (groups, rows, channels), y (groups, channels); float32, plain C order of these axes.
    """
    tiles = groups * -(-channels // LANES)
    # Half of the most blocks is one full round of all multiprocessors.
    splits = max(1, min(MOST_BLOCKS // 2 // tiles, -(-rows // LEAST_ROWS)))
    by = rows if divisor is None else divisor
    if splits == 1:
        return Program((_sums("channel_means", tiles, pointers(0, 1), groups, rows, channels, 1, by),))
    return Program(
        (
            _sums("channel_sums", tiles * splits, pointers(0, 2), groups, rows, channels, splits, 1),
            _sums("channel_totals", tiles, pointers(2, 1), groups, splits, channels, 1, by),
        ),
        groups * splits * channels * 8,
    )


def _sums(function: str, pieces: int, operands: tuple[Pointer, ...], *sizes: int) -> KernelCall:
    *counts, divisor = sizes
    return blocked(function, pieces, operands, *(np.int64(c) for c in counts), np.float64(divisor))


def bias_gradient(shape: tuple[int, ...]) -> Program:
    """The gradient of a bias: the sum of dy over all axes but the channels'.

    Operands: dy, channels-last (N, C, H, W) or plain (N, F), of logical shape `shape`; db (C,) or (F,).
    """
    images, channels, *image = shape
    rows = images * int(np.prod(image, dtype=np.int64))
    return channel_means(1, rows, channels, divisor=1)
