"""Which tensors leave the arena while a step runs, when they come back, and where they lie: a cache played ahead.

Every operation has its operands in the arena. Where there is no hole for what it needs, others leave: the least recently
used, or those whose next use is farthest. Operands of the running operation are locked; workspace, what is small and the
state that lies in the arena stay. A tensor that is there when it is read moves no byte. State whose home is outside
comes with its first use; once it is updated it stays until its bytes are needed or the step ends.

Of those who could leave, the first few by that rule are looked at, with their neighbours up to the bytes that are needed;
taken are those of whom the first to be missed is missed last. Where locked operands leave no such stretch, the least of
them leave and are brought back elsewhere; at last everybody leaves, and all operands are brought side by side.

What is away comes back before it is read: when all transfers that are needed up to some point would else be late, with
`MARGIN` for a link that is slower than said, and at least one heavy operation ahead. For that, only those leave who are
needed later.

Not checked: whether a transfer pays. Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: tensor cache (LRU),
prefetch one convolution ahead. Farthest next use: Belady, "A study of replacement algorithms", 1966, possible because
the order is known.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import accumulate

from ..plan.link import Link
from .arena_map import HOLE, ArenaMap
from .uses import UseTable

MARGIN = 1.25
"""A transfer is taken to last so many times as long as the link says when it is decided how early it begins."""
LOOKED_AT = 12
"""Those who would leave first and are looked at with their neighbours."""
AHEAD = 12
"""Transfers back that are looked at to see whether they would be late."""


class EvictionRule(str, Enum):
    """Who leaves first."""

    LRU = "lru"
    FARTHEST = "farthest"


@dataclass(frozen=True, slots=True)
class Timing:
    """What the moment of a transfer depends on.

    Attributes:
        seconds: of each operation of the order.
        heavy: of each, whether it belongs to a convolution or matrix product.
        link: to the memory outside.
    """

    seconds: Sequence[float]
    heavy: Sequence[bool]
    link: Link


@dataclass(frozen=True, slots=True)
class Eviction:
    """An instance leaves the arena.

    Attributes:
        instance: number in the draft.
        last_use: position after which it may leave.
        gone: position at which its bytes are needed for others; the number of positions where nobody needs them.
        changed: whether it holds what the memory outside does not.
    """

    instance: int
    last_use: int
    gone: int
    changed: bool


@dataclass(frozen=True, slots=True)
class Prefetch:
    """An instance comes to the arena.

    Attributes:
        instance: number in the draft.
        begin: position before which its transfer begins.
        next_use: position at which it must be there.
    """

    instance: int
    begin: int
    next_use: int


@dataclass(slots=True)
class CacheSchedule:
    """A step as the cache plays it.

    Attributes:
        departures: in the order in which their bytes are needed.
        returns: in the order in which they are needed.
        addresses: of all stays, in the order in which they begin, by instance; those of small instances are not here.
    """

    evictions: list[Eviction] = field(default_factory=list)
    prefetches: list[Prefetch] = field(default_factory=list)
    addresses: dict[int, list[int]] = field(default_factory=dict)


def schedule_cache(
    residents: UseTable, first: int, end: int, eviction: EvictionRule, timed: Timing
) -> CacheSchedule | None:
    """Play an order through; None where even the operands of one operation do not fit.

    Args:
        residents: of the order.
        first: address from which instances may lie; those that are small come first.
        end: address up to which.
        eviction: who leaves first.
        timed: seconds and link.
    """
    if end - first < residents.least_bytes():
        return None
    cache = _Cache(residents, first + residents.fixed_bytes, end, eviction is EvictionRule.FARTHEST, timed)
    for position in range(len(residents.operands)):
        cache.run(position)
    cache.finish()
    return cache.schedule


class _Cache:
    """Who is in the arena at a position."""

    def __init__(self, residents: UseTable, first: int, end: int, farthest: bool, timed: Timing) -> None:
        self.schedule = CacheSchedule()
        self._residents = residents
        self._farthest = farthest
        self._timed = timed
        self._map = ArenaMap(first, end)
        self._touched: dict[int, int] = {}
        self._queue: list[tuple[int, int, int, int]] = []
        self._missed: dict[int, int] = {}
        self._early: dict[int, int] = {}
        self._comes = [0.0, *accumulate(timed.seconds)]
        self._heavy = _heavy_before(timed.heavy)
        self._link_free = 0.0
        self._in_seconds = [timed.link.in_seconds(n) for n in residents.nbytes]
        self._absent: list[tuple[int, int]] = sorted((-residents.first_use(i), -i) for i in residents.at_home)

    def run(self, position: int) -> None:
        """Bring what an operation needs, let go what nobody needs after it, and begin to bring what is needed next."""
        residents, there = self._residents, self._touched
        operands, arriving = residents.operands[position], residents.arriving[position]
        heirs = {new for _, new in residents.handed_over[position]}
        missing = [i for i in operands if i not in there and i not in arriving]
        coming = [i for i in (*arriving, *missing) if i not in heirs]
        missing += self._bring(coming, position, {*operands, *arriving})
        for instance in missing:
            self._fetched(instance, position, position)
        for old, new in residents.handed_over[position]:
            address = self._map.address(old)
            self._map.hand_over(old, new)
            del self._touched[old], self._missed[old]
            self.schedule.addresses.setdefault(new, []).append(address)
        for instance in operands:
            self._early.pop(instance, None)
        for instance in (*operands, *arriving):
            if instance in self._map:
                self._touch(instance, position)
        self._prefetch(position, {*operands, *arriving})
        for instance in residents.leaving[position]:
            if instance in self._map and instance not in residents.updated:
                self._map.free(instance)
                del there[instance], self._missed[instance]

    def finish(self) -> None:
        """At the end of the step what was updated goes home."""
        for instance in sorted(self._touched.keys() & self._residents.updated.keys()):
            self._leave(instance, len(self._comes) - 1)
        self.schedule.evictions.sort(key=lambda d: (d.gone, d.instance))
        self.schedule.prefetches.sort(key=lambda r: (r.next_use, r.begin))

    def _bring(self, coming: Sequence[int], position: int, locked: Collection[int]) -> list[int]:
        """Place what comes; where it does not fit beside the operands that are there, bring the least of these anew.

        Returns:
            The operands that left and come back.
        """
        nbytes = self._residents.nbytes
        there = sorted((i for i in self._touched if i in locked and self._residents.movable[i]), key=nbytes.__getitem__)
        anew: list[int] = []
        while not self._fit((*coming, *anew), position, locked):
            for instance in (*coming, *anew):
                if instance in self._touched:
                    self._forget(instance)
            if not there:
                for instance in list(self._touched):
                    self._leave(instance, position)
                fits = self._fit((*coming, *anew), position, locked)
                assert fits, "the least room is enough"
                break
            anew.append(there.pop(0))
            self._leave(anew[-1], position)
        return anew

    def _fit(self, coming: Sequence[int], position: int, locked: Collection[int]) -> bool:
        nbytes = self._residents.nbytes
        for _, instance in sorted([(-nbytes[i], i) for i in coming]):
            if not self._place(instance, position, locked, None):
                return False
        return True

    def _place(self, instance: int, position: int, locked: Collection[int], later_than: int | None) -> bool:
        """Find room, with others leaving for it if they must; only those who are needed later, where that is given."""
        nbytes = self._residents.nbytes[instance]
        address = self._map.tightest(nbytes)
        if address is None and position:
            address = self._make_room(nbytes, position, locked, later_than)
        if address is None:
            return False
        self._map.put(instance, address, nbytes)
        self.schedule.addresses.setdefault(instance, []).append(address)
        self._touched[instance] = position
        self._missed[instance] = self._next_use_after(instance, position)
        return True

    def _make_room(self, nbytes: int, position: int, locked: Collection[int], later_than: int | None) -> int | None:
        """Let those leave who are missed last; return where the hole begins."""
        best: tuple[int, int] | None = None
        chosen: tuple[int, list[int]] = (0, [])
        entries: list[tuple[int, int, int, int]] = []
        missed, sizes = self._missed.__getitem__, self._residents.nbytes.__getitem__
        while self._queue and (len(entries) < LOOKED_AT or best is None):
            entry = heappop(self._queue)
            instance, touched = entry[2:]
            if self._touched.get(instance) != touched:
                continue
            entries.append(entry)
            for rightward in (True, False):
                window = self._window(instance, nbytes, locked, rightward)
                if window is None:
                    continue
                if later_than is not None and min(map(missed, window[1])) <= later_than:
                    continue
                worst = (
                    -min(map(missed, window[1])) if self._farthest else max(map(self._touched.__getitem__, window[1]))
                )
                if best is None or worst <= best[0]:
                    score = (worst, sum(map(sizes, window[1])))
                    if best is None or score < best:
                        best, chosen = score, window
            if later_than is not None and len(entries) >= LOOKED_AT:
                break
        for entry in entries:
            heappush(self._queue, entry)
        if best is None:
            return None
        for instance in chosen[1]:
            self._leave(instance, position)
        return chosen[0]

    def _window(
        self, instance: int, nbytes: int, locked: Collection[int], rightward: bool
    ) -> tuple[int, list[int]] | None:
        """A stretch of at least so many bytes around a block, grown to one side, and who lies in it."""
        arena, movable = self._map, self._residents.movable
        segment, grow = arena.segment, arena.after if rightward else arena.before
        low = arena.address(instance)
        behind = arena.before(low) if rightward else arena.after(low)  # a hole there is taken along
        if behind is not None and segment(behind)[1] == HOLE:
            low = behind
        edge: int | None = low
        size = 0
        leave: list[int] = []
        while size < nbytes:
            if edge is None:
                return None
            end, owner = segment(edge)
            if owner != HOLE:
                if owner in locked or not movable[owner]:
                    return None
                leave.append(owner)
            size += end - edge
            if edge < low:
                low = edge
            edge = grow(edge)
        return low, leave

    def _forget(self, instance: int) -> None:
        """Take back that an instance was placed."""
        self._map.free(instance)
        del self._touched[instance], self._missed[instance]
        self.schedule.addresses[instance].pop()

    def _fetched(self, instance: int, position: int, next_use: int) -> None:
        self.schedule.prefetches.append(Prefetch(instance, position, next_use))
        self._link_free = max(self._link_free, self._comes[position]) + self._in_seconds[instance]

    def _leave(self, instance: int, position: int) -> None:
        """An instance leaves; one that came early and was not used yet never came."""
        residents = self._residents
        if instance in self._early:
            number = self._early.pop(instance)
            self.schedule.prefetches = [
                r for r in self.schedule.prefetches if (r.instance, r.begin) != (instance, number)
            ]
            self._forget(instance)
            insort(self._absent, (-self._next_use_after(instance, number - 1), -instance))
            return
        touched = self._touched.pop(instance)
        del self._missed[instance]
        self._map.free(instance)
        after = residents.next_use(instance, touched)
        changed = instance not in residents.at_home or residents.updated.get(instance, len(self._comes)) <= touched
        self.schedule.evictions.append(Eviction(instance, touched, position, changed))
        if after is not None:
            insort(self._absent, (-after, -instance))

    def _prefetch(self, position: int, locked: Collection[int]) -> None:
        """Begin the transfers back that would else be late."""
        now, seconds = self._comes[position], self._timed.seconds[position]
        while self._absent and self._link_free <= now + seconds:
            next_use, instance = -self._absent[-1][0], -self._absent[-1][1]
            if instance in self._touched or next_use <= position:
                self._absent.pop()
                continue
            if not self._is_late(position) and position < self._heavy[next_use]:
                return
            if not self._place(instance, position, locked, next_use):
                return
            self._absent.pop()
            self._early[instance] = position
            self._fetched(instance, position, next_use)
            self._touch(instance, position)

    def _is_late(self, position: int) -> bool:
        """Whether some of the next transfers would be late if the first did not begin now."""
        total = max(self._link_free, self._comes[position + 1])
        absent, looked_at, place = self._absent, 0, len(self._absent)
        while place and looked_at < AHEAD:
            place -= 1
            next_use, instance = absent[place]
            if -instance in self._touched:
                del absent[place]
                continue
            looked_at += 1
            total += MARGIN * self._in_seconds[-instance]
            if total > self._comes[-next_use]:
                return True
        return False

    def _touch(self, instance: int, position: int) -> None:
        self._touched[instance] = position
        missed = self._missed[instance] = self._next_use_after(instance, position)
        if self._residents.movable[instance]:
            rank = -missed if self._farthest else position
            heappush(self._queue, (rank, -self._residents.nbytes[instance], instance, position))

    def _next_use_after(self, instance: int, position: int) -> int:
        after = self._residents.next_use(instance, position)
        return len(self._comes) - 1 if after is None else after


def _heavy_before(heavy: Sequence[bool]) -> list[int]:
    """For each position the last heavy operation before it, or itself where there is none."""
    found, last = [], -1
    for position, is_heavy in enumerate(heavy):
        found.append(position if last < 0 else last)
        if is_heavy:
            last = position
    return found
