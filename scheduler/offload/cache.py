"""Which tensors leave the arena while a step runs, when they come back, and where they lie: a cache simulated ahead.

*Evictions.* Every operation has its operands in the arena. Where no hole is large enough for them, other instances
leave: the least recently used, or those whose next use is farthest. Operands of the running operation, workspace, small
tensors and the state that lies in the arena stay. `contents` chooses the stretch that they leave; where operands lie so
that there is none, the smallest of them leave and are brought back elsewhere, and in the end all instances leave, and
the operands are brought side by side. State whose home is outside comes with its first use; once it is updated it stays
until its bytes are needed or the step ends.

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
from itertools import accumulate

from ..plan.link import Link
from .arena_map import ArenaMap
from .contents import ArenaContents
from .uses import UseTable

MARGIN = 1.25
"""How early a transfer begins is decided as if it took so many times as long as the link says."""
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
    cache = _Cache(uses, first + uses.fixed_bytes, end, eviction, timing)
    for position in range(len(uses.operands)):
        cache.run(position)
    cache.finish()
    return cache.schedule


class _Cache:
    """What is in the arena at a position, and what has been decided up to it.

    Args:
        uses: the uses of the order's instances.
        first: the lowest address at which instances may lie that are not small.
        end: the address that none of them reaches beyond.
        eviction: which instance leaves first.
        timing: seconds of the operations, and the link.

    Attributes:
        schedule: what has been decided.
        _contents: the instances in the arena.
        _begins_at: for each position the seconds after which its operation begins if nothing is waited for; behind the
            last one the seconds of all.
        _heavy: for each position the last heavy operation before it.
        _link_free: the seconds at which the link has brought all that it was asked for.
        _in_seconds: for each instance the seconds that the link takes to bring it.
        _prefetched_at: for each instance that was brought ahead and is not used yet, the position at which that began.
        _awaiting_return: the instances outside that are needed again, as pairs (-next use, -instance) in increasing
            order: the one needed first is last.
    """

    def __init__(self, uses: UseTable, first: int, end: int, eviction: EvictionRule, timing: Timing) -> None:
        self.schedule = CacheSchedule()
        self._uses = uses
        self._timing = timing
        self._contents = ArenaContents(uses, ArenaMap(first, end), farthest=eviction is EvictionRule.FARTHEST)
        self._begins_at = [0.0, *accumulate(timing.seconds)]
        self._heavy = _find_heavy_before(timing.heavy)
        self._link_free = 0.0
        self._in_seconds = [timing.link.in_seconds(n) for n in uses.nbytes]
        self._prefetched_at: dict[int, int] = {}
        self._awaiting_return: list[tuple[int, int]] = sorted((-uses.first_use(i), -i) for i in uses.at_home)

    def run(self, position: int) -> None:
        """Bring what an operation needs, begin to bring what is needed next, and free what is not needed any more."""
        uses, contents = self._uses, self._contents
        operands, arriving = uses.operands[position], uses.arriving[position]
        heirs = {new for _, new in uses.handed_over[position]}
        missing = [i for i in operands if i not in contents.last_use and i not in arriving]
        coming = [i for i in (*arriving, *missing) if i not in heirs]
        missing += self._bring(coming, position, {*operands, *arriving})
        for instance in missing:
            self._add_prefetch(instance, position, position)
        for old, new in uses.handed_over[position]:
            self.schedule.addresses.setdefault(new, []).append(contents.hand_over(old, new))
        for instance in operands:
            self._prefetched_at.pop(instance, None)
        for instance in (*operands, *arriving):
            if instance in contents.arena:
                contents.touch(instance, position)
        self._prefetch(position, {*operands, *arriving})
        for instance in uses.leaving[position]:
            if instance in contents.arena and instance not in uses.updated:
                contents.remove(instance)

    def finish(self) -> None:
        """Send home what was updated, at the end of the step."""
        for instance in sorted(self._contents.last_use.keys() & self._uses.updated.keys()):
            self._evict(instance, len(self._uses.operands))
        self.schedule.evictions.sort(key=lambda eviction: (eviction.gone, eviction.instance))
        self.schedule.prefetches.sort(key=lambda prefetch: (prefetch.next_use, prefetch.begin))

    def _bring(self, coming: Sequence[int], position: int, locked: Collection[int]) -> list[int]:
        """Place what comes; where it does not fit beside the operands that are there, bring the smallest of these anew.

        Returns:
            The operands that left for that and come back.
        """
        nbytes, last_use = self._uses.nbytes, self._contents.last_use
        there = sorted((i for i in last_use if i in locked and self._uses.movable[i]), key=nbytes.__getitem__)
        anew: list[int] = []
        while not self._fit((*coming, *anew), position, locked):
            for instance in (*coming, *anew):
                if instance in last_use:
                    self._forget(instance)
            if not there:
                for instance in list(last_use):
                    self._evict(instance, position)
                fits = self._fit((*coming, *anew), position, locked)
                assert fits, "the least room is enough"
                break
            anew.append(there.pop(0))
            self._evict(anew[-1], position)
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
        address = self._contents.arena.find_tightest(nbytes)
        if address is None and position:
            stretch = self._contents.choose_stretch(nbytes, locked, later_than)
            if stretch is not None:
                address = stretch.begin
                for leaving in stretch.instances:
                    self._evict(leaving, position)
        if address is None:
            return False
        self._contents.put(instance, address, position)
        self.schedule.addresses.setdefault(instance, []).append(address)
        return True

    def _forget(self, instance: int) -> None:
        """Take back that an instance was placed."""
        self._contents.remove(instance)
        self.schedule.addresses[instance].pop()

    def _add_prefetch(self, instance: int, position: int, next_use: int) -> None:
        self.schedule.prefetches.append(Prefetch(instance, position, next_use))
        self._link_free = max(self._link_free, self._begins_at[position]) + self._in_seconds[instance]

    def _evict(self, instance: int, position: int) -> None:
        """Let an instance leave; the prefetch of one that was not used since is taken back."""
        uses = self._uses
        if instance in self._prefetched_at:
            begin = self._prefetched_at.pop(instance)
            self.schedule.prefetches = [
                prefetch
                for prefetch in self.schedule.prefetches
                if (prefetch.instance, prefetch.begin) != (instance, begin)
            ]
            self._forget(instance)
            insort(self._awaiting_return, (-self._contents.find_next_use(instance, begin - 1), -instance))
            return
        last_use = self._contents.remove(instance)
        after = uses.next_use(instance, last_use)
        changed = instance not in uses.at_home or uses.updated.get(instance, len(uses.operands)) <= last_use
        self.schedule.evictions.append(Eviction(instance, last_use, position, changed))
        if after is not None:
            insort(self._awaiting_return, (-after, -instance))

    def _prefetch(self, position: int, locked: Collection[int]) -> None:
        """Begin the transfers back that would else be late."""
        now, seconds, awaiting = self._begins_at[position], self._timing.seconds[position], self._awaiting_return
        while awaiting and self._link_free <= now + seconds:
            next_use, instance = -awaiting[-1][0], -awaiting[-1][1]
            if instance in self._contents.last_use or next_use <= position:
                awaiting.pop()
                continue
            if not self._is_late(position) and position < self._heavy[next_use]:
                return
            if not self._place(instance, position, locked, next_use):
                return
            awaiting.pop()
            self._prefetched_at[instance] = position
            self._add_prefetch(instance, position, next_use)
            self._contents.touch(instance, position)

    def _is_late(self, position: int) -> bool:
        """Return whether one of the next transfers would be late if the first did not begin now."""
        total = max(self._link_free, self._begins_at[position + 1])
        awaiting, looked_at, place = self._awaiting_return, 0, len(self._awaiting_return)
        while place and looked_at < AHEAD:
            place -= 1
            next_use, instance = awaiting[place]
            if -instance in self._contents.last_use:
                del awaiting[place]
                continue
            looked_at += 1
            total += MARGIN * self._in_seconds[-instance]
            if total > self._begins_at[-next_use]:
                return True
        return False


def _find_heavy_before(heavy: Sequence[bool]) -> list[int]:
    """Return for each position the last heavy operation before it, or the position itself where there is none."""
    found, last = [], -1
    for position, is_heavy in enumerate(heavy):
        found.append(position if last < 0 else last)
        if is_heavy:
            last = position
    return found
