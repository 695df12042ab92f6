"""Where the taps of a sliding window lie, for convolution and pooling.

A tap is one position inside the window. For every tap it is worked out beforehand which input pixels it meets and at
which outputs, so that padding needs no test and no copy while running.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....layers.convolution import window_outputs
from ....layers.operations import Attrs

Area = tuple[slice, slice]


@dataclass(frozen=True, slots=True)
class Tap:
    """One position inside the window.

    Attributes:
        row: its row in the window.
        column: its column in the window.
        inputs: the pixels of the image that it meets.
        outputs: the outputs at which it meets them.
    """

    row: int
    column: int
    inputs: Area
    outputs: Area


@dataclass(frozen=True, slots=True)
class Windows:
    """A window that slides over an image; each pair is (vertical, horizontal)."""

    image: tuple[int, int]
    output: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def pointwise(self) -> bool:
        """Whether every window is one pixel, and every pixel has one."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    def span(self, axis: int, outputs: int) -> int:
        """Pixels from the first to the last that `outputs` neighbouring windows meet along an axis."""
        return (outputs - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def taps(self, first: int, last: int) -> tuple[Tap, ...]:
        """All taps in row order, for the output rows from `first` to before `last`; those that meet nothing are left out.

        `outputs` counts from `first`.
        """
        made = []
        for row in range(self.kernel[0]):
            vertical = self._overlap(0, row, first, last)
            for column in range(self.kernel[1]):
                horizontal = self._overlap(1, column, 0, self.output[1])
                if vertical and horizontal:
                    areas = ((vertical[i], horizontal[i]) for i in (0, 1))
                    made.append(Tap(row, column, *areas))
        return tuple(made)

    def _overlap(self, axis: int, tap: int, first: int, last: int) -> tuple[slice, slice] | None:
        """The pixels and the outputs of one tap along one axis; None where it meets padding alone."""
        stride = self.stride[axis]
        shift = tap * self.dilation[axis] - self.padding[axis]
        low = max(first, -(shift // stride))
        high = min(last, (self.image[axis] - 1 - shift) // stride + 1)
        if low >= high:
            return None
        pixels = slice(low * stride + shift, (high - 1) * stride + shift + 1, stride)
        return pixels, slice(low - first, high - first)


def convolution_windows(image: tuple[int, int], kernel: tuple[int, int], attrs: Attrs) -> Windows:
    """The windows of a convolution over `image`."""
    stride, padding, dilation = attrs["stride"], attrs["padding"], attrs["dilation"]
    output = tuple(window_outputs(image[a], kernel[a], stride[a], padding[a], dilation[a]) for a in (0, 1))
    return Windows(image, (output[0], output[1]), kernel, stride, padding, dilation)


def pooling_windows(image: tuple[int, int], output: tuple[int, int], attrs: Attrs) -> Windows:
    """The windows of a pooling over `image`, whose number depends on rounding and is therefore given."""
    return Windows(image, output, attrs["kernel"], attrs["stride"], attrs["padding"], (1, 1))
