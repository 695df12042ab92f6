"""Addresses: where each buffer of a plan lies in the arena.

State comes first (`plan.state_layout`). The other buffers are rectangles in time × addresses that must not overlap.
They are placed by a heap pool that replays the step, and by first-fits in several orders. The lowest arena wins, and
the search ends when it equals the live peak.

Source of the ordering idea: offline dynamic storage allocation by decreasing size (Pisarchyk and Lee, 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...memory.allocator import HeapPool
from ..plan.steps import ALIGNMENT

FIRST_FIT_LIMIT = 6000
"""Above this many buffers only the heap pool places: a first-fit compares each buffer with all earlier ones."""
CLOSE = 256
"""Nothing is repaired where the arena is above the live peak by less than this part of it."""
REPAIRED = (2, 0)
"""The orders that are repaired, as positions in `_ORDERS`: by bytes times steps, and by bytes."""
ROUNDS = 24
"""So many first-fits repair an order of up to `ROUNDED` buffers; fewer one of more."""
ROUNDED = 600


class Rectangle(NamedTuple):
    """A buffer to place: alive from step `birth` to step `death`, both included.

    Its address is a multiple of `alignment`, a power of two of at least `ALIGNMENT`, unless it has no bytes.
    """

    birth: int
    death: int
    nbytes: int
    alignment: int = ALIGNMENT


def place(rectangles: Sequence[Rectangle], base: int, enough: int | None = None) -> tuple[list[int], int]:
    """Find addresses from `base` up; `base` is aligned as the arena is, no more.

    Args:
        rectangles: the buffers to place.
        base: the lowest address.
        enough: first-fits are repaired until they end at or below this address; 0 looks for the lowest end, and None
            repairs nothing, which takes a fraction of the time.

    Returns:
        The address of each rectangle, and the highest end (at least `base`).
    """
    if not rectangles:
        return [], base
    bound = base + _find_live_peak(rectangles)
    best = _replay(rectangles, base, backwards=False)
    if best[1] > bound:
        best = min(best, _replay(rectangles, base, backwards=True), key=lambda found: found[1])
    if len(rectangles) > FIRST_FIT_LIMIT:
        return best
    tried = []
    for key in _ORDERS:
        if best[1] <= bound:
            return best
        order = sorted(range(len(rectangles)), key=lambda i: (*key(rectangles[i]), i))
        found = _place_first_fit(rectangles, order, base)
        tried.append((order, found[0]))
        best = min(best, found, key=lambda found: found[1])
    if enough is None or bound > enough > 0:
        return best
    enough = max(enough, bound + bound // CLOSE)
    for order, addresses in (tried[number] for number in REPAIRED):
        for promote in (_move_to_front, _move_half_way):
            if best[1] > enough:
                best = min(
                    best, _repair(rectangles, order, addresses, base, enough, promote), key=lambda found: found[1]
                )
    return best


def _repair(
    rectangles: Sequence[Rectangle],
    order: list[int],
    addresses: list[int],
    base: int,
    enough: int,
    promote: Callable[[list[int], list[int]], list[int]],
) -> tuple[list[int], int]:
    """Place again and again, each time with earlier turns for what ended too high before; return the lowest."""
    best: tuple[list[int], int] | None = None
    for _ in range(min(ROUNDS, max(ROUNDS * ROUNDED // len(rectangles), 2))):
        order = promote(order, [i for i in order if addresses[i] + rectangles[i].nbytes > enough])
        addresses, end = _place_first_fit(rectangles, order, base)
        if best is None or end < best[1]:
            best = addresses, end
        if end <= enough:
            break
    assert best is not None
    return best


def _move_to_front(order: list[int], high: list[int]) -> list[int]:
    """Give the first rectangle that ended too high its turn before all others."""
    return [*high[:1], *(i for i in order if i != high[0])]


def _move_half_way(order: list[int], high: list[int]) -> list[int]:
    """Move all rectangles that ended too high to half of their positions."""
    too_high = set(high)
    position = {i: p // 2 - 0.5 if i in too_high else float(p) for p, i in enumerate(order)}
    return sorted(order, key=position.__getitem__)


_ORDERS = (
    lambda r: (-r.nbytes, -(r.death - r.birth)),
    lambda r: (-(r.death - r.birth), -r.nbytes),
    lambda r: (-r.nbytes * (r.death - r.birth + 1),),
    lambda r: (r.birth, -r.death, -r.nbytes),
)


def _find_live_peak(rectangles: Sequence[Rectangle]) -> int:
    births, deaths, sizes = (np.array([r[field] for r in rectangles], np.int64) for field in range(3))
    change = np.zeros(int(deaths.max()) + 2, np.int64)
    np.add.at(change, births, sizes)
    np.subtract.at(change, deaths + 1, sizes)
    return int(np.cumsum(change).max())


def _list_events(rectangles: Sequence[Rectangle], backwards: bool) -> list[int]:
    """List rectangles where they begin, and ~rectangles where they end, from the first step or from the last.

    At one step, what begins is placed before what ends is freed; what lives longest is placed first.
    """
    count = len(rectangles)
    births, deaths = (np.array([r[field] for r in rectangles], np.int64) for field in range(2))
    if backwards:
        births, deaths = -deaths, -births
    numbers = np.arange(count)
    order = np.lexsort(
        (
            np.concatenate([numbers, numbers]),
            np.concatenate([-deaths, np.zeros(count, np.int64)]),
            np.repeat([0, 1], count),
            np.concatenate([births, deaths]),
        )
    )
    found: list[int] = np.where(order < count, order, ~(order - count)).tolist()
    return found


def _replay(rectangles: Sequence[Rectangle], base: int, *, backwards: bool) -> tuple[list[int], int]:
    """Place by the heap pool, from the first step on or from the last, where what lives long is often placed first."""
    pool = HeapPool(None, alignment=ALIGNMENT)
    if base:
        pool.allocate(-1, base)  # so that the pool's addresses are those of the arena, and aligned as they are
    addresses = [base] * len(rectangles)
    for event in _list_events(rectangles, backwards):
        if event < 0:
            if rectangles[~event].nbytes:
                pool.free(~event)
        elif rectangles[event].nbytes:
            _, _, nbytes, alignment = rectangles[event]
            addresses[event] = pool.allocate(event, nbytes, alignment)
    return addresses, pool.statistics.high_water_bytes


def _place_first_fit(rectangles: Sequence[Rectangle], order: Sequence[int], base: int) -> tuple[list[int], int]:
    count = len(rectangles)
    # Columns of the rectangles that are placed, in the order of their addresses.
    births, deaths, starts, ends = (np.empty(count + 1, np.int64) for _ in range(4))
    addresses = [base] * count
    top, placed = base, 0
    for i in order:
        birth, death, nbytes, alignment = rectangles[i]
        if nbytes == 0:
            continue
        overlap = ((births[:placed] <= death) & (deaths[:placed] >= birth)).nonzero()[0]
        address = -(-base // alignment) * alignment
        if overlap.size:
            gaps = np.maximum.accumulate(ends[overlap])
            if alignment != ALIGNMENT:
                gaps = -(-gaps // alignment) * alignment
            first = starts[overlap]
            if first[0] - address < nbytes:
                fits = first[1:] - gaps[:-1] >= nbytes
                at = int(fits.argmax()) if fits.size else -1
                address = int(gaps[at] if at >= 0 and fits[at] else gaps[-1])
        at = int(starts[:placed].searchsorted(address))
        for column, value in ((births, birth), (deaths, death), (starts, address), (ends, address + nbytes)):
            column[at + 1 : placed + 1] = column[at:placed]
            column[at] = value
        placed += 1
        addresses[i] = address
        top = max(top, address + nbytes)
    return addresses, top
