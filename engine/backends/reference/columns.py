"""From images to the columns of a matrix product (im2col), one tile at a time.

A tile is a few images and a strip of output rows. Where there is padding, the pixels of a tile are first copied into
a frame with zeros around; from there, or straight from the image, one strided copy makes the columns. What the kernels
of one convolution differ in is only how it is cut into tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....layers.graph import TensorSpec
from .blocks import Spans
from .numpy_kernel import Array
from .windows import Area, Tap, Windows

BATCH_BYTES = 16 * 2**20
"""Bound on the columns of several images at once."""
STRIP_BYTES = 4 * 2**20
"""Bound on the columns of a strip of rows, and from where on an image is worth cutting into strips."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Some output rows.

    Attributes:
        rows: how many.
        pixels: their place among the output's pixels.
        origin: the first image row that their windows meet, negative inside the padding.
        frame: (rows, columns) that their windows meet, with padding.
        source: the pixels of the image among them.
        inside: their place in the frame.
        taps: of these rows.
    """

    rows: int
    pixels: slice
    origin: int
    frame: tuple[int, int]
    source: Area
    inside: Area
    taps: tuple[Tap, ...]


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the columns of a batch are made.

    Attributes:
        name: of the kernel that works in these tiles.
        windows: of the convolution.
        channels: of the images.
        groups: of the convolution.
        dtype: element type.
        images: which images go together.
        strips: which rows go together.
    """

    name: str
    windows: Windows
    channels: int
    groups: int
    dtype: str
    images: Spans
    strips: tuple[Strip, ...]

    @property
    def padded(self) -> bool:
        """Whether a frame is needed."""
        return any(self.windows.padding)

    @property
    def frame(self) -> TensorSpec:
        """The scratch array for the frame; empty without padding."""
        rows, columns = (max(s.frame[a] for s in self.strips) for a in (0, 1))
        return TensorSpec((self.images.longest, self.channels, rows, columns) if self.padded else (0,), self.dtype)

    @property
    def pixels(self) -> int:
        """Output pixels of one image in the largest tile."""
        return max(s.rows for s in self.strips) * self.windows.output[1]

    @property
    def columns(self) -> TensorSpec:
        """The scratch array for the columns."""
        depth = self.channels * math.prod(self.windows.kernel)
        return TensorSpec((self.images.longest * depth * self.pixels,), self.dtype)

    def column_taps(self, strip: Strip, columns: Array) -> Array:
        """The scratch array as (images, C, kh, kw, rows, W') of the tiles of `strip`."""
        shape = (self.images.longest, self.channels, *self.windows.kernel, strip.rows, self.windows.output[1])
        return columns[: math.prod(shape)].reshape(shape)

    def column_matrix(self, taps: Array) -> Array:
        """`column_taps` as matrices (images, groups, C / groups · kh · kw, rows · W')."""
        images, _, _, _, rows, width = taps.shape
        return taps.reshape(images, self.groups, -1, rows * width)

    def gather(self, x: Array, frame: Array, columns: Array) -> Iterator[tuple[slice, Strip, Array]]:
        """Make the columns of tile after tile; yields images, strip and the column matrices of the tile."""
        for strip in self.strips:
            taps = self.column_taps(strip, columns)
            matrix = self.column_matrix(taps)
            if self.padded:
                around = frame[:, :, : strip.frame[0], : strip.frame[1]]
                # The border is the same for all images, and copying never touches it.
                around.fill(0)
                inside = around[:, :, strip.inside[0], strip.inside[1]]
                met = self._overlap(strip, frame, frame.shape[2:], 0, frame.shape[0])
            for images in self.images:
                count = images.stop - images.start
                if self.padded:
                    np.copyto(inside[:count], x[images, :, strip.source[0], strip.source[1]])
                    np.copyto(taps[:count], met[:count])
                else:
                    first = images.start * self.channels * math.prod(self.windows.image)
                    first += strip.origin * self.windows.image[1]
                    np.copyto(taps[:count], self._overlap(strip, x, self.windows.image, first, count))
                yield images, strip, matrix[:count]

    def _overlap(self, strip: Strip, pixels: Array, size: tuple[int, ...], first: int, images: int) -> Array:
        """A view (images, C, kh, kw, rows, W') of what every tap meets; `pixels` is contiguous with images of `size`."""
        height, width = size
        stride, dilation = self.windows.stride, self.windows.dilation
        shape = (images, self.channels, *self.windows.kernel, strip.rows, self.windows.output[1])
        steps = (
            self.channels * height * width,
            height * width,
            dilation[0] * width,
            dilation[1],
            stride[0] * width,
            stride[1],
        )
        item = pixels.itemsize
        return np.ndarray(shape, pixels.dtype, pixels, first * item, tuple(step * item for step in steps))  # type: ignore[no-any-return]


def tilings(windows: Windows, images: int, channels: int, groups: int, dtype: str) -> tuple[Tiling, ...]:
    """The ways to cut a convolution into tiles.

    "image" takes one image at a time and comes first; "batch" as many as have at most `BATCH_BYTES` of columns; "rows"
    strips of one image, where that has more than `STRIP_BYTES`. The first two do the same arithmetic in the same order
    and give the same bits; the last gives others, since the matrix products have other sizes.
    """
    rows, width = windows.output
    row_bytes = channels * math.prod(windows.kernel) * width * np.dtype(dtype).itemsize
    whole = (_strip(windows, 0, rows),)
    made = [Tiling("image", windows, channels, groups, dtype, Spans(images, 1), whole)]
    together = min(images, BATCH_BYTES // (row_bytes * rows))
    if together > 1:
        made.append(Tiling("batch", windows, channels, groups, dtype, Spans(images, together), whole))
    few = max(1, STRIP_BYTES // row_bytes)
    if few < rows:
        strips = tuple(_strip(windows, s.start, s.stop) for s in Spans(rows, few))
        made.append(Tiling("rows", windows, channels, groups, dtype, Spans(images, 1), strips))
    return tuple(made)


def _strip(windows: Windows, first: int, last: int) -> Strip:
    rows, (height, width) = last - first, windows.image
    frame = (windows.span(0, rows), windows.span(1, windows.output[1]))
    origin = first * windows.stride[0] - windows.padding[0]
    vertical = _overlap(origin, frame[0], height)
    horizontal = _overlap(-windows.padding[1], frame[1], width)
    return Strip(
        rows,
        slice(first * windows.output[1], last * windows.output[1]),
        origin,
        frame,
        (vertical[0], horizontal[0]),
        (vertical[1], horizontal[1]),
        windows.taps(first, last),
    )


def _overlap(origin: int, span: int, size: int) -> tuple[slice, slice]:
    """What `span` pixels from `origin` share with an axis of `size`: the place there, and among the span."""
    low, high = max(0, origin), min(size, origin + span)
    high = max(low, high)
    return slice(low, high), slice(low - origin, high - origin)
