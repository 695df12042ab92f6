"""Sums and means of each channel over the pixels of channels-last images, in float64 and in one order."""

from __future__ import annotations

import numpy as np

from ....memory.errors import DeviceError
from .kernel_program import (
    ELEMENT_TYPES,
    FLOAT32,
    MOST_BLOCKS,
    ElementType,
    KernelCall,
    KernelProgram,
    Pointer,
    conversion_suffix,
    launch_blocks,
    pointers,
)

LANES = 32
"""Channels that a block takes."""
LEAST_ROWS = 64
"""Rows of a split, where there are as many: 8 for each line of a block."""


def channel_means(
    groups: int, rows: int, channels: int, source: ElementType, target: ElementType, divisor: int | None = None
) -> KernelProgram:
    """The sums of each group of rows, divided by the rows of a group or by `divisor`.

    Operands: x (groups, rows, channels) of type `source`, y (groups, channels) of type `target`, which is float32 or
    that of x; plain C order of these axes.
    """
    tiles = groups * -(-channels // LANES)
    # Half of the most blocks is one full round of all multiprocessors.
    splits = max(1, min(MOST_BLOCKS // 2 // tiles, -(-rows // LEAST_ROWS)))
    by = rows if divisor is None else divisor
    if splits == 1:
        function = "channel_means" + conversion_suffix(source, target)
        return KernelProgram((_sums(function, tiles, pointers(0, 1), groups, rows, channels, 1, by),))
    sums, totals = "channel_sums" + source.suffix, "channel_totals" + target.suffix
    return KernelProgram(
        (
            _sums(sums, tiles * splits, pointers(0, 2), groups, rows, channels, splits, 1),
            _sums(totals, tiles, pointers(2, 1), groups, splits, channels, 1, by),
        ),
        groups * splits * channels * 8,
    )


def _sums(function: str, pieces: int, operands: tuple[Pointer, ...], *sizes: int) -> KernelCall:
    *counts, divisor = sizes
    return launch_blocks(function, pieces, operands, *(np.int64(c) for c in counts), np.float64(divisor))


def bias_gradient(shape: tuple[int, ...], dtype: str = FLOAT32.name) -> KernelProgram:
    """The gradient of a bias: the sum of dy over all axes but the channels'.

    Operands: dy, channels-last (N, C, H, W) or plain (N, F), of logical shape `shape`; db (C,) or (F,) in float32.

    Args:
        shape: of dy.
        dtype: of dy, "float32" or "bfloat16".

    Raises:
        DeviceError: dy is of another type.
    """
    if dtype not in ELEMENT_TYPES:
        raise DeviceError("gradient of a bias on CUDA", " or ".join(ELEMENT_TYPES), dtype)
    images, channels, *image = shape
    rows = images * int(np.prod(image, dtype=np.int64))
    return channel_means(1, rows, channels, ELEMENT_TYPES[dtype], FLOAT32, divisor=1)
