"""Sums and means of each channel over the pixels of channels-last images, in float64 and in one order."""

from __future__ import annotations

import numpy as np

from .program import MOST_BLOCKS, Program, blocked, each, pointers

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
    sizes = (np.int64(groups), np.int64(rows), np.int64(channels), np.int64(splits))
    scalars = (np.int64(groups), np.int64(channels), np.int64(splits), np.float64(rows if divisor is None else divisor))
    return Program(
        (
            blocked("channel_sums", tiles * splits, pointers(0, 2), *sizes),
            each("channel_totals", groups * channels, pointers(2, 1), *scalars),
        ),
        groups * splits * channels * 8,
    )


def bias_gradient(shape: tuple[int, ...]) -> Program:
    """The gradient of a bias: the sum of dy over all axes but the channels'.

    Operands: dy, channels-last (N, C, H, W) or plain (N, F), of logical shape `shape`; db (C,) or (F,).
    """
    images, channels, *image = shape
    rows = images * int(np.prod(image, dtype=np.int64))
    return channel_means(1, rows, channels, divisor=1)
