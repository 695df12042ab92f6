"""bfloat16 for tests. numpy has no such type: an array of uint16 holds the upper halves of float32 numbers.

Rounding looks the nearest number up among all there are, which is slow and shares nothing with the kernels' arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]

INFINITY = 0x7F80
QUIET_NAN = 0x7FC0


def widen(bits: Bits) -> Floats:
    """The numbers as float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


SIZES = widen(np.arange(INFINITY + 1, dtype=np.uint16)).astype(np.float64)
"""All numbers but the negative ones, at the places that their bits name."""
SIZES[INFINITY] = 2.0**128  # what would be the next one: from halfway there on, numbers become infinite


def round_to_nearest(x: npt.NDArray[Any]) -> Bits:
    """The nearest bfloat16 of each float32; of two the one with an even last bit; some NaN of a NaN."""
    assert x.dtype == np.float32
    with np.errstate(invalid="ignore"):  # of signaling NaN
        size = np.abs(x).astype(np.float64)
    upper = np.searchsorted(SIZES, size).clip(max=INFINITY)
    lower = np.where(SIZES[upper] == size, upper, (upper - 1).clip(min=0))
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        below, above = size - SIZES[lower], SIZES[upper] - size
    up = (above < below) | ((above == below) & (upper % 2 == 0))
    nearest = np.where(up | np.isinf(size), upper, lower)
    nearest[np.isnan(x)] = QUIET_NAN
    return (nearest | np.signbit(x).astype(np.int64) << 15).astype(np.uint16)


def is_nan(bits: Bits) -> npt.NDArray[np.bool_]:
    """Where there is no number."""
    return bits & 0x7FFF > INFINITY


def steps(ours: Bits, exact: Bits) -> npt.NDArray[np.int64]:
    """How many numbers lie between; 0 where both are a NaN, and between zeros of unlike sign."""
    places = [np.where(b >> 15, -(b & 0x7FFF).astype(np.int64), b & 0x7FFF) for b in (ours, exact)]
    distance = np.abs(places[0] - places[1])
    distance[is_nan(ours) & is_nan(exact)] = 0
    distance[is_nan(ours) != is_nan(exact)] = 2**16
    return distance


def same_numbers(ours: Bits, exact: Bits) -> None:
    """Check for equal bits; a NaN may be any NaN."""
    assert ours.shape == exact.shape and ours.dtype == exact.dtype == np.uint16
    number = ~is_nan(exact)
    np.testing.assert_array_equal(~is_nan(ours), number)
    np.testing.assert_array_equal(ours[number], exact[number])


def nearly_same(ours: Bits, exact: Bits) -> None:
    """Check for numbers that are equal or neighbours."""
    assert ours.shape == exact.shape and ours.dtype == exact.dtype == np.uint16
    assert steps(ours, exact).max(initial=0) <= 1
