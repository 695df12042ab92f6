"""When transfers begin and are waited for: from the schedule of a cache to an order with moves.

A tensor is sent as soon as the direction outward is free, the most urgent first, and is waited for where its bytes are
needed. It is not sent a second time as long as its value has not changed. A transfer back begins where the schedule
says.

Seconds are looked at only to decide when to begin; `simulate` says what comes of it.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: offload points of the unified tensor pool. Sending
the most urgent first is the rule of earliest deadlines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ..layout.lifetimes import Lifetimes
from ..layout.moves import Move, Order, Transfer
from .cache import CacheSchedule, Eviction, Timing


@dataclass(slots=True)
class _Slot:
    """The moves before one operation, in the order in which they are begun."""

    offloads: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)

    def moves(self) -> Iterable[Move]:
        """List the moves as they stand in the order."""
        for what, tensors in (
            (Transfer.OFFLOAD, self.offloads),
            (Transfer.WAIT, self.gone),
            (Transfer.FETCH, self.fetches),
            (Transfer.WAIT, self.back),
        ):
            yield from (Move(what, t) for t in tensors)


def insert_moves(order: Sequence[int], lifetimes: Lifetimes, schedule: CacheSchedule, timing: Timing) -> Order:
    """Put the moves of a schedule between the operations of an order.

    Args:
        order: operations alone.
        lifetimes: those of the order's instances.
        schedule: what the cache has decided.
        timing: seconds of the operations, and the link.
    """
    slots = [_Slot() for _ in range(len(order) + 1)]
    sent: dict[int, Eviction] = {}
    for eviction in schedule.evictions:
        if eviction.changed:
            sent.setdefault(lifetimes.tensor[eviction.instance], eviction)
    leaving = list(sent.values())
    for eviction, begin in zip(leaving, _find_begins(leaving, lifetimes, timing), strict=True):
        slots[begin].offloads.append(lifetimes.tensor[eviction.instance])
        slots[eviction.gone].gone.append(lifetimes.tensor[eviction.instance])
    for back in schedule.prefetches:
        slots[back.begin].fetches.append(lifetimes.tensor[back.instance])
        slots[back.next_use].back.append(lifetimes.tensor[back.instance])
    moved: list[int | Move] = []
    for number, slot in zip((*order, None), slots, strict=True):
        moved += slot.moves()
        if number is not None:
            moved.append(number)
    return moved


def _find_begins(leaving: Sequence[Eviction], lifetimes: Lifetimes, timing: Timing) -> list[int]:
    """Return for each eviction the position before which its transfer begins."""
    released: dict[int, list[int]] = {}
    for number, eviction in enumerate(leaving):
        released.setdefault(eviction.last_use + 1, []).append(number)
    begins = [0] * len(leaving)
    urgent: list[tuple[int, int]] = []
    now = free = 0.0
    for position, seconds in enumerate((*timing.seconds, 0.0)):
        for number in released.get(position, ()):
            heappush(urgent, (leaving[number].gone, number))
        # The next one is begun before an operation during which the one before will be done.
        while urgent and (urgent[0][0] <= position or free <= now + seconds):
            gone, number = heappop(urgent)
            begins[number] = position
            free = max(now, free) + timing.link.out_seconds(lifetimes.nbytes[leaving[number].instance])
            if gone == position:
                now = max(now, free)
        now += seconds
    return begins
