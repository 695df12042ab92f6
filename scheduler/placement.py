"""Addresses: where each buffer of a plan lies in the arena.

State comes first (`state_layout`). The other buffers are rectangles in time × addresses that must not overlap. Several orders of a first-fit are tried,
and the heap pool replaying the step; the lowest arena wins, and the search ends when it equals the live peak.

Source of the ordering idea: offline dynamic storage allocation by decreasing size (Pisarchyk and Lee, 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..memory.allocator import HeapPool
from .plan import ALIGNMENT

FIRST_FIT_LIMIT = 6000
"""Above this many buffers only the heap pool places: a first-fit compares each buffer with all earlier ones."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A buffer to place: alive from step `birth` to step `death`, both included.

    Its address is a multiple of `alignment`, a power of two of at least `ALIGNMENT`, unless it has no bytes.
    """

    birth: int
    death: int
    nbytes: int
    alignment: int = ALIGNMENT


def place(rectangles: Sequence[Rectangle], base: int) -> tuple[list[int], int]:
    """Find addresses from `base` up; `base` is aligned as the arena is, no more.

    Returns:
        The address of each rectangle, and the highest end (at least `base`).
    """
    if not rectangles:
        return [], base
    bound = base + _live_peak(rectangles)
    best = _replay(rectangles, base, _by_time(rectangles))
    if best[1] > bound:
        other = _replay_backwards(rectangles, base)
        best = min(best, other, key=lambda found: found[1])
    if len(rectangles) <= FIRST_FIT_LIMIT:
        for key in _ORDERS:
            if best[1] <= bound:
                break
            order = sorted(range(len(rectangles)), key=lambda i: (*key(rectangles[i]), i))
            best = min(best, _first_fit(rectangles, order, base), key=lambda found: found[1])
    return best


_ORDERS = (
    lambda r: (-r.nbytes, -(r.death - r.birth)),
    lambda r: (-(r.death - r.birth), -r.nbytes),
    lambda r: (-r.nbytes * (r.death - r.birth + 1),),
    lambda r: (r.birth, -r.death, -r.nbytes),
)


def _live_peak(rectangles: Sequence[Rectangle]) -> int:
    change = np.zeros(max(r.death for r in rectangles) + 2, np.int64)
    for r in rectangles:
        change[r.birth] += r.nbytes
        change[r.death + 1] -= r.nbytes
    return int(np.cumsum(change).max())


def _by_time(rectangles: Sequence[Rectangle]) -> Iterable[tuple[bool, int]]:
    """(is a birth, rectangle) in the order of a run; what dies at a step is freed after that step's births."""
    events = [(r.birth, 0, -(r.death), i) for i, r in enumerate(rectangles)]
    events += [(r.death, 1, 0, i) for i, r in enumerate(rectangles)]
    events.sort()
    return [(kind == 0, i) for _, kind, _, i in events]


def _replay(rectangles: Sequence[Rectangle], base: int, events: Iterable[tuple[bool, int]]) -> tuple[list[int], int]:
    pool = HeapPool(None, alignment=ALIGNMENT)
    if base:
        pool.allocate(-1, base)  # so that the pool's addresses are those of the arena, and aligned as they are
    addresses = [base] * len(rectangles)
    for birth, i in events:
        r = rectangles[i]
        if r.nbytes == 0:
            continue
        if birth:
            addresses[i] = pool.allocate(i, r.nbytes, r.alignment)
        else:
            pool.free(i)
    return addresses, pool.statistics.high_water_bytes


def _replay_backwards(rectangles: Sequence[Rectangle], base: int) -> tuple[list[int], int]:
    """The same from the last step to the first: what lives long is then often placed first."""
    last = max(r.death for r in rectangles)
    mirrored = [Rectangle(last - r.death, last - r.birth, r.nbytes, r.alignment) for r in rectangles]
    return _replay(mirrored, base, _by_time(mirrored))


def _first_fit(rectangles: Sequence[Rectangle], order: Sequence[int], base: int) -> tuple[list[int], int]:
    count = len(rectangles)
    births: npt.NDArray[np.int64] = np.empty(count, np.int64)
    deaths = np.empty(count, np.int64)
    starts = np.empty(count, np.int64)
    ends = np.empty(count, np.int64)
    addresses = [base] * count
    top = base
    for placed, i in enumerate(order):
        r = rectangles[i]
        if r.nbytes == 0:
            deaths[placed] = -1  # lives with nothing
            continue
        overlap = np.flatnonzero((births[:placed] <= r.death) & (deaths[:placed] >= r.birth))
        address = -(-base // r.alignment) * r.alignment
        if overlap.size:
            by_start = overlap[np.argsort(starts[overlap], kind="stable")]
            first, end = starts[by_start], np.maximum.accumulate(ends[by_start])
            gaps = -(-np.concatenate(([base], end)) // r.alignment) * r.alignment
            fits = np.flatnonzero(first - gaps[:-1] >= r.nbytes)
            address = int(gaps[fits[0]] if fits.size else gaps[-1])
        births[placed], deaths[placed] = r.birth, r.death
        starts[placed], ends[placed] = address, address + r.nbytes
        addresses[i] = address
        top = max(top, address + r.nbytes)
    return addresses, top
