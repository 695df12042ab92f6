"""Cutting arrays into pieces that fit a bounded scratch array, and accurate sums over such pieces.

Sums are taken in float64 whatever the type of the data, because a float32 sum over a million pixels loses digits that
no later step brings back. Pieces depend on shapes alone, so the order of all additions is fixed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .numpy_kernel import Array

BUFFER_ELEMENTS = 1 << 15
"""Elements of a scratch array: 256 KiB of float64, which stays in a processor's second-level cache."""

Block = tuple[slice, slice, slice]
SUMMED = (0, 2)
"""Axes of (N, C, P) that a sum over a channel runs along."""


@dataclass(frozen=True, slots=True)
class Spans:
    """`count` items cut into slices of `step` items; the last may be shorter.

    The slices are made when asked for: a plan for a batch of millions must not hold millions of them.
    """

    count: int
    step: int

    def __len__(self) -> int:
        return -(-self.count // self.step)

    def __iter__(self) -> Iterator[slice]:
        return (slice(first, min(first + self.step, self.count)) for first in range(0, self.count, self.step))

    @property
    def longest(self) -> int:
        """Items of the first slice, which no other has more of."""
        return min(self.count, self.step)


@dataclass(frozen=True, slots=True)
class Blocks:
    """An array (N, C, P) cut along all its axes; the blocks come in order of images, channels, pixels."""

    images: Spans
    channels: Spans
    pixels: Spans

    def __iter__(self) -> Iterator[Block]:
        return itertools.product(self.images, self.channels, self.pixels)


def flat_spans(elements: int, limit: int = BUFFER_ELEMENTS) -> tuple[int, Spans]:
    """Cut a flat array; returns the length of the longest piece, and the pieces."""
    return min(limit, elements), Spans(elements, limit)


def channel_blocks(images: int, channels: int, pixels: int) -> tuple[int, Blocks]:
    """Cut an array of shape (N, C, P) into blocks of at most `BUFFER_ELEMENTS`.

    Returns:
        the elements of the largest block, and the blocks.
    """
    steps = [1, 1, min(pixels, BUFFER_ELEMENTS)]
    if channels * pixels <= BUFFER_ELEMENTS:
        steps[:2] = min(images, BUFFER_ELEMENTS // (channels * pixels)), channels
    elif pixels <= BUFFER_ELEMENTS:
        steps[1] = BUFFER_ELEMENTS // pixels
    blocks = Blocks(Spans(images, steps[0]), Spans(channels, steps[1]), Spans(pixels, steps[2]))
    return steps[0] * steps[1] * steps[2], blocks


def view_like(buffer: Array, like: Array) -> Array:
    """The first elements of the flat `buffer` in the shape of `like`."""
    return buffer[: like.size].reshape(like.shape)


def add_sums(block: Array, total: Array, part: Array) -> None:
    """Add the sums of a float64 block (N, C, P) over N and P to `total` (C,); `part` (C,) is scratch."""
    np.add.reduce(block, axis=SUMMED, out=part)
    np.add(total, part, out=total)


def channel_sums(x: Array, blocks: Blocks, buffer: Array, total: Array, part: Array) -> None:
    """Sum `x` of shape (N, C, P) over N and P into float64 `total` (C,); `buffer` and `part` (C,) are scratch."""
    total.fill(0)
    for block in blocks:
        values = x[block]
        wide = view_like(buffer, values)
        np.copyto(wide, values)
        add_sums(wide, total[block[1]], part[block[1]])
