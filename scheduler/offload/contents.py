"""Which instances are in the arena at one moment, and which of them leave where there is no hole large enough.

An instance can come where the bytes that it needs lie side by side, so what leaves is all that lies in one stretch of
the arena. The first few instances by the rule of eviction are looked at, each with its neighbours to one side and to
the other, until the stretch has the bytes that are needed. By the rule of the farthest next use, the stretch is emptied
that is not needed for the longest time: of each stretch, the instance that is used soonest counts. By the rule of the
least recent use, that one counts which was used last, and the stretch is emptied where this is longest ago. Of equal
stretches the one with the fewest bytes in use is emptied.

Not checked: whether a transfer pays. Sources: the two rules are those that `cache` names; stretches are ours.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush

from .arena_map import HOLE, ArenaMap
from .uses import UseTable

LOOKED_AT = 12
"""So many instances, those that would leave first, are looked at with their neighbours."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbours in the arena that leave together.

    Attributes:
        begin: the address at which the stretch begins.
        instances: all that lie in it.
    """

    begin: int
    instances: list[int]


class ArenaContents:
    """The instances in the arena: where each lies, when it was used last and when it is used next.

    Args:
        uses: the uses of all instances of the order.
        arena: the part of the arena in which they may lie, still empty.
        farthest: whether the instance whose next use is farthest leaves first; else the least recently used one does.

    Attributes:
        arena: where each instance lies.
        last_use: for each instance in the arena the position at which it was last used or came.
        _next_use_of: for each of them the next position that uses it, the number of positions where none does.
        _queue: a heap of (rank, -bytes, instance, last use) of all that may leave; what leaves first has the lowest
            rank. Entries whose last use is no longer that of the instance are out of date, and are dropped when met.
    """

    def __init__(self, uses: UseTable, arena: ArenaMap, *, farthest: bool) -> None:
        self.arena = arena
        self.last_use: dict[int, int] = {}
        self._uses, self._farthest = uses, farthest
        self._next_use_of: dict[int, int] = {}
        self._queue: list[tuple[int, int, int, int]] = []

    def put(self, instance: int, address: int, position: int) -> None:
        """Put an instance into the hole at an address; it cannot leave before it is touched."""
        self.arena.put(instance, address, self._uses.nbytes[instance])
        self.last_use[instance] = position
        self._next_use_of[instance] = self.find_next_use(instance, position)

    def touch(self, instance: int, position: int) -> None:
        """Note that an instance is used at a position."""
        self.last_use[instance] = position
        next_use = self._next_use_of[instance] = self.find_next_use(instance, position)
        if self._uses.movable[instance]:
            rank = -next_use if self._farthest else position
            heappush(self._queue, (rank, -self._uses.nbytes[instance], instance, position))

    def remove(self, instance: int) -> int:
        """Make a hole of an instance; return when it was last used."""
        self.arena.free(instance)
        del self._next_use_of[instance]
        return self.last_use.pop(instance)

    def hand_over(self, old: int, new: int) -> int:
        """Give the bytes of an instance to another one, which is not touched yet; return their address."""
        address = self.arena.address(old)
        self.arena.hand_over(old, new)
        del self.last_use[old], self._next_use_of[old]
        return address

    def find_next_use(self, instance: int, position: int) -> int:
        """Find the next position that uses an instance; the number of positions where none does."""
        after = self._uses.next_use(instance, position)
        return len(self._uses.operands) if after is None else after

    def choose_stretch(self, nbytes: int, locked: Collection[int], later_than: int | None) -> Stretch | None:
        """Choose the stretch that is emptied for an instance; None where there is none.

        Args:
            nbytes: the bytes that it must have at least.
            locked: instances that stay.
            later_than: where given, all instances of the stretch are used later than this position.
        """
        best: tuple[int, int] | None = None
        chosen: Stretch | None = None
        entries: list[tuple[int, int, int, int]] = []
        next_use, last_use, size = (
            self._next_use_of.__getitem__,
            self.last_use.__getitem__,
            self._uses.nbytes.__getitem__,
        )
        while self._queue and (len(entries) < LOOKED_AT or best is None):
            entry = heappop(self._queue)
            instance, touched = entry[2:]
            if self.last_use.get(instance) != touched:
                continue
            entries.append(entry)
            for rightward in (True, False):
                stretch = self._grow_stretch(instance, nbytes, locked, rightward)
                if stretch is None:
                    continue
                soonest = min(map(next_use, stretch.instances))
                if later_than is not None and soonest <= later_than:
                    continue
                rank = -soonest if self._farthest else max(map(last_use, stretch.instances))
                if best is None or rank <= best[0]:
                    score = (rank, sum(map(size, stretch.instances)))
                    if best is None or score < best:
                        best, chosen = score, stretch
            if later_than is not None and len(entries) >= LOOKED_AT:
                break
        for entry in entries:
            heappush(self._queue, entry)
        return chosen

    def _grow_stretch(self, instance: int, nbytes: int, locked: Collection[int], rightward: bool) -> Stretch | None:
        """Find the stretch of at least so many bytes that begins with an instance and grows to one side."""
        arena, movable = self.arena, self._uses.movable
        grow = arena.find_after if rightward else arena.find_before
        low = arena.address(instance)
        behind = arena.find_before(low) if rightward else arena.find_after(low)  # a hole there is taken along
        if behind is not None and arena.find_span(behind)[1] == HOLE:
            low = behind
        start: int | None = low
        size = 0
        leaving: list[int] = []
        while size < nbytes:
            if start is None:
                return None
            end, owner = arena.find_span(start)
            if owner != HOLE:
                if owner in locked or not movable[owner]:
                    return None
                leaving.append(owner)
            size += end - start
            low = min(low, start)
            start = grow(start)
        return Stretch(low, leaving)
