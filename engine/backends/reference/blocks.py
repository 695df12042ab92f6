"""Cutting arrays into pieces that fit a bounded scratch array, and accurate sums over such pieces.

Sums are taken in float64 whatever the type of the data, because a float32 sum over a million pixels loses digits that
no later step brings back. Pieces depend on shapes alone, so the order of all additions is fixed.
"""

from __future__ import annotations

import numpy as np

from .variant import Array

BUFFER_ELEMENTS = 1 << 15
"""Elements of a scratch array: 256 KiB of float64, which stays in a processor's second-level cache."""

Block = tuple[slice, slice, slice]
SUMMED = (0, 2)
"""Axes of (N, C, P) that a sum over a channel runs along."""


def spans(count: int, step: int) -> tuple[slice, ...]:
    """Cut `count` items into slices of `step` items; the last may be shorter."""
    return tuple(slice(first, min(first + step, count)) for first in range(0, count, step))


def flat_spans(elements: int, limit: int = BUFFER_ELEMENTS) -> tuple[int, tuple[slice, ...]]:
    """Cut a flat array; returns the length of the longest piece, and the pieces."""
    return min(limit, elements), spans(elements, limit)


def channel_blocks(images: int, channels: int, pixels: int) -> tuple[int, tuple[Block, ...]]:
    """Cut an array of shape (N, C, P) into blocks of at most `BUFFER_ELEMENTS`.

    Returns:
        the elements of the largest block, and the blocks in order of images, channels, pixels.
    """
    steps = [1, 1, min(pixels, BUFFER_ELEMENTS)]
    if channels * pixels <= BUFFER_ELEMENTS:
        steps[:2] = min(images, BUFFER_ELEMENTS // (channels * pixels)), channels
    elif pixels <= BUFFER_ELEMENTS:
        steps[1] = BUFFER_ELEMENTS // pixels
    blocks = tuple(
        (n, c, p) for n in spans(images, steps[0]) for c in spans(channels, steps[1]) for p in spans(pixels, steps[2])
    )
    return steps[0] * steps[1] * steps[2], blocks


def shaped(buffer: Array, like: Array) -> Array:
    """The first elements of the flat `buffer` in the shape of `like`."""
    return buffer[: like.size].reshape(like.shape)


def add_sums(block: Array, total: Array, part: Array) -> None:
    """Add the sums of a float64 block (N, C, P) over N and P to `total` (C,); `part` (C,) is scratch."""
    np.add.reduce(block, axis=SUMMED, out=part)
    np.add(total, part, out=total)


def channel_sums(x: Array, blocks: tuple[Block, ...], buffer: Array, total: Array, part: Array) -> None:
    """Sum `x` of shape (N, C, P) over N and P into float64 `total` (C,); `buffer` and `part` (C,) are scratch."""
    total.fill(0)
    for block in blocks:
        values = x[block]
        wide = shaped(buffer, values)
        np.copyto(wide, values)
        add_sums(wide, total[block[1]], part[block[1]])
