"""Which tensors leave the arena while a step runs, when they come back, and where they lie: a cache simulated ahead.

*Evictions.* Every operation has its operands in the arena. Where no hole is large enough for them, other instances
leave: the least recently used, or those whose next use is farthest. Operands of the running operation, workspace, small
tensors and the state that lies in the arena stay. State whose home is outside comes with its first use; once it is
updated it stays until its bytes are needed or the step ends.

*Which stretch.* The first few instances by that rule are looked at, each with its neighbours up to the bytes that are
needed. The stretch is emptied whose first use, of all instances in it, comes last. Where operands lie so that there is
no such stretch, the smallest of them leave and are brought back elsewhere; in the end all instances leave, and the
operands are brought side by side.

*Prefetches.* An instance comes back when it or one of the next ones would else be late, with `MARGIN` for a link that
is slower than said, and at least one heavy operation before it is read. A prefetch evicts only what is needed later.

Not checked: whether a transfer pays. Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: tensor cache
(LRU), prefetch one convolution ahead. Farthest next use: Belady, "A study of replacement algorithms", 1966, possible
because the order is known.
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
"""How early a transfer begins is decided as if it took so many times as long as the link says."""
LOOKED_AT = 12
"""So many instances, those that would leave first, are looked at with their neighbours."""
AHEAD = 12
"""So many of the next transfers back are looked at to see whether one would be late."""


class EvictionRule(str, Enum):
    """Which instance leaves first: the least recently used, or the one whose next use is farthest."""

    LRU = "lru"
    FARTHEST = "farthest"


@dataclass(frozen=True, slots=True)
class Timing:
    """What the moment of a transfer depends on.

    Attributes:
        seconds: the time of each operation of the order.
        heavy: for each operation, whether it belongs to a convolution or matrix product.
        link: the link to the memory outside.
    """

    seconds: Sequence[float]
    heavy: Sequence[bool]
    link: Link


@dataclass(frozen=True, slots=True)
class Eviction:
    """An instance leaves the arena.

    Attributes:
        instance: its number in the lifetimes.
        last_use: position after which it may leave.
        gone: position at which its bytes are needed for others; the number of positions where they never are.
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
        instance: its number in the lifetimes.
        begin: position before which its transfer begins.
        next_use: position at which it must be there.
    """

    instance: int
    begin: int
    next_use: int


@dataclass(slots=True)
class CacheSchedule:
    """What the cache decides for a step.

    Attributes:
        evictions: in the order in which their bytes are needed.
        prefetches: in the order in which the instances are needed.
        addresses: for each instance that is not small its address at each time that it is placed in the arena.
    """

    evictions: list[Eviction] = field(default_factory=list)
    prefetches: list[Prefetch] = field(default_factory=list)
    addresses: dict[int, list[int]] = field(default_factory=dict)


def schedule_cache(
    uses: UseTable, first: int, end: int, eviction: EvictionRule, timing: Timing
) -> CacheSchedule | None:
    """Decide all evictions, prefetches and addresses of an order; None where the operands of one operation do not fit.

    Args:
        uses: the uses of the order's instances.
        first: the lowest address at which instances may lie; those that are small come first.
        end: the address that none of them reaches beyond.
        eviction: which instance leaves first.
        timing: seconds of the operations, and the link.
    """
    if end - first < uses.least_bytes():
        return None
    cache = _Cache(uses, first + uses.fixed_bytes, end, eviction is EvictionRule.FARTHEST, timing)
    for position in range(len(uses.operands)):
        cache.run(position)
    cache.finish()
    return cache.schedule


class _Cache:
    """What is in the arena at a position, and what has been decided up to it."""

    def __init__(self, uses: UseTable, first: int, end: int, farthest: bool, timing: Timing) -> None:
        self.schedule = CacheSchedule()
        self._uses = uses
        self._farthest = farthest
        self._timing = timing
        self._map = ArenaMap(first, end)
        self._touched: dict[int, int] = {}
        self._queue: list[tuple[int, int, int, int]] = []
        self._missed: dict[int, int] = {}
        self._early: dict[int, int] = {}
        self._comes = [0.0, *accumulate(timing.seconds)]
        self._heavy = _find_heavy_before(timing.heavy)
        self._link_free = 0.0
        self._in_seconds = [timing.link.in_seconds(n) for n in uses.nbytes]
        self._absent: list[tuple[int, int]] = sorted((-uses.first_use(i), -i) for i in uses.at_home)

    def run(self, position: int) -> None:
        """Bring what an operation needs, begin to bring what is needed next, and free what is not needed any more."""
        uses, there = self._uses, self._touched
        operands, arriving = uses.operands[position], uses.arriving[position]
        heirs = {new for _, new in uses.handed_over[position]}
        missing = [i for i in operands if i not in there and i not in arriving]
        coming = [i for i in (*arriving, *missing) if i not in heirs]
        missing += self._bring(coming, position, {*operands, *arriving})
        for instance in missing:
            self._add_prefetch(instance, position, position)
        for old, new in uses.handed_over[position]:
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
        for instance in uses.leaving[position]:
            if instance in self._map and instance not in uses.updated:
                self._map.free(instance)
                del there[instance], self._missed[instance]

    def finish(self) -> None:
        """Send home what was updated, at the end of the step."""
        for instance in sorted(self._touched.keys() & self._uses.updated.keys()):
            self._leave(instance, len(self._comes) - 1)
        self.schedule.evictions.sort(key=lambda d: (d.gone, d.instance))
        self.schedule.prefetches.sort(key=lambda r: (r.next_use, r.begin))

    def _bring(self, coming: Sequence[int], position: int, locked: Collection[int]) -> list[int]:
        """Place what comes; where it does not fit beside the operands that are there, bring the smallest of these anew.

        Returns:
            The operands that left for that and come back.
        """
        nbytes = self._uses.nbytes
        there = sorted((i for i in self._touched if i in locked and self._uses.movable[i]), key=nbytes.__getitem__)
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
        nbytes = self._uses.nbytes
        for _, instance in sorted([(-nbytes[i], i) for i in coming]):
            if not self._place(instance, position, locked, None):
                return False
        return True

    def _place(self, instance: int, position: int, locked: Collection[int], later_than: int | None) -> bool:
        """Place an instance, evicting others if need be; with `later_than` only those that are used later."""
        nbytes = self._uses.nbytes[instance]
        address = self._map.find_tightest(nbytes)
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
        """Empty the stretch whose instances are used again last; return where it begins, None where there is none."""
        best: tuple[int, int] | None = None
        chosen: tuple[int, list[int]] = (0, [])
        entries: list[tuple[int, int, int, int]] = []
        missed, sizes = self._missed.__getitem__, self._uses.nbytes.__getitem__
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
        """Return a stretch of at least so many bytes around a block, grown to one side, and what lies in it."""
        arena, movable = self._map, self._uses.movable
        find_span, grow = arena.find_span, arena.find_after if rightward else arena.find_before
        low = arena.address(instance)
        behind = arena.find_before(low) if rightward else arena.find_after(low)  # a hole there is taken along
        if behind is not None and find_span(behind)[1] == HOLE:
            low = behind
        edge: int | None = low
        size = 0
        leave: list[int] = []
        while size < nbytes:
            if edge is None:
                return None
            end, owner = find_span(edge)
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

    def _add_prefetch(self, instance: int, position: int, next_use: int) -> None:
        self.schedule.prefetches.append(Prefetch(instance, position, next_use))
        self._link_free = max(self._link_free, self._comes[position]) + self._in_seconds[instance]

    def _leave(self, instance: int, position: int) -> None:
        """Let an instance leave; the prefetch of one that was not used since is taken back."""
        uses = self._uses
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
        after = uses.next_use(instance, touched)
        changed = instance not in uses.at_home or uses.updated.get(instance, len(self._comes)) <= touched
        self.schedule.evictions.append(Eviction(instance, touched, position, changed))
        if after is not None:
            insort(self._absent, (-after, -instance))

    def _prefetch(self, position: int, locked: Collection[int]) -> None:
        """Begin the transfers back that would else be late."""
        now, seconds = self._comes[position], self._timing.seconds[position]
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
            self._add_prefetch(instance, position, next_use)
            self._touch(instance, position)

    def _is_late(self, position: int) -> bool:
        """Return whether one of the next transfers would be late if the first did not begin now."""
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
        if self._uses.movable[instance]:
            rank = -missed if self._farthest else position
            heappush(self._queue, (rank, -self._uses.nbytes[instance], instance, position))

    def _next_use_after(self, instance: int, position: int) -> int:
        after = self._uses.next_use(instance, position)
        return len(self._comes) - 1 if after is None else after


def _find_heavy_before(heavy: Sequence[bool]) -> list[int]:
    """Return for each position the last heavy operation before it, or the position itself where there is none."""
    found, last = [], -1
    for position, is_heavy in enumerate(heavy):
        found.append(position if last < 0 else last)
        if is_heavy:
            last = position
    return found
