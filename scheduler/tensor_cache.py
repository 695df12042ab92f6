"""Which tensors leave the arena while a step runs: a cache of bytes, played through before anything runs.

Every operation has its operands in the arena. Where what it needs does not fit beside what is there, others leave:
the least recently used, or those whose next use is farthest. Operands of the running operation are locked; state,
workspace and what is smaller than a page stay. A tensor that is there when it is read moves no byte.

Decides who is away between which uses; `transfers` decides when the bytes move. Not checked: whether that pays.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: tensor cache (LRU). Farthest next use: Belady, "A study
of replacement algorithms", 1966, possible because the order is known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush

from ..layers.graph import Graph, Role
from .draft import Draft
from .plan import NO_INSTANCE, NO_TENSOR, PAGE, Run, aligned


class Eviction(str, Enum):
    """Who leaves first."""

    LRU = "lru"
    FARTHEST = "farthest"


MOVABLE = frozenset({Role.ACTIVATION, Role.GRADIENT, Role.INPUT})
"""Roles of tensors that may leave."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A time that an instance spends outside the arena.

    Attributes:
        instance: number in the draft.
        last_use: position after which it may leave.
        gone: position at which its bytes are needed for others.
        next_use: position at which it must be back.
    """

    instance: int
    last_use: int
    gone: int
    next_use: int


class Residents:
    """An order without moves as a cache sees it: who is used when, and who may leave.

    Attributes:
        nbytes: of each instance; whole pages where it may leave.
        operands: instances of each position's operation, workspace included; at the last also what must be there at
            the end.
        arriving: those of them that are made there, or are there from the start.
        handed_over: those of them whose memory an output takes over.
        leaving: instances that nobody needs afterwards.
        movable: of each instance, whether it may leave.
    """

    def __init__(self, graph: Graph, drafted: Draft) -> None:
        count = len(drafted.steps)
        self.movable = [
            t != NO_TENSOR and graph.tensors[t].role in MOVABLE and n >= PAGE
            for t, n in zip(drafted.tensor, drafted.nbytes, strict=True)
        ]
        self.nbytes = [aligned(n, PAGE) if m else n for n, m in zip(drafted.nbytes, self.movable, strict=True)]
        self.operands: list[tuple[int, ...]] = []
        self.arriving: list[list[int]] = [[] for _ in range(count)]
        self.leaving: list[list[int]] = [[] for _ in range(count)]
        self.handed_over: list[list[int]] = [[] for _ in range(count)]
        self._uses: list[list[int]] = [[birth] for birth in drafted.birth]
        owner: dict[int, int] = {}
        for instance, buffer in enumerate(drafted.buffer):
            if buffer in owner:
                self.handed_over[drafted.birth[instance]].append(owner[buffer])
            owner[buffer] = instance
            self.arriving[drafted.birth[instance]].append(instance)
            self.leaving[drafted.death[instance]].append(instance)
        for position, step in enumerate(drafted.steps):
            assert isinstance(step, Run)
            workspace = () if step.workspace == NO_INSTANCE else (step.workspace,)
            self.operands.append(tuple(dict.fromkeys((*step.inputs, *step.outputs, *workspace))))
            for instance in self.operands[-1]:
                if self._uses[instance][-1] < position:
                    self._uses[instance].append(position)
        for instance, (uses, death) in enumerate(zip(self._uses, drafted.death, strict=True)):
            if uses[-1] < death:
                # Otherwise an output that was away could come back at the end to where there is no room for it.
                uses.append(death)
                self.operands[death] += (instance,)

    def last_use(self, instance: int, position: int) -> int:
        """The last position before `position` that uses an instance."""
        uses = self._uses[instance]
        return uses[bisect_left(uses, position) - 1]

    def next_use(self, instance: int, position: int) -> int:
        """The first position from `position` on that uses an instance."""
        uses = self._uses[instance]
        return uses[bisect_left(uses, position)]

    def uses_after(self, instance: int, position: int) -> Sequence[int]:
        """All positions after `position` that use an instance."""
        uses = self._uses[instance]
        return uses[bisect_right(uses, position) :]

    def least_bytes(self) -> int:
        """The room below which no cache works: the most that operands, and what may not leave, take at one position."""
        most = fixed = 0
        for position, operands in enumerate(self.operands):
            fixed += sum(self.nbytes[i] for i in self.arriving[position] if not self.movable[i])
            now = sum(self.nbytes[i] for i in operands if self.movable[i])
            if not position:  # the batch comes before the first operation
                now = sum(self.nbytes[i] for i in self.arriving[0] if self.movable[i])
            now -= sum(self.nbytes[i] for i in self.handed_over[position])
            most = max(most, fixed + now)
            fixed -= sum(self.nbytes[i] for i in self.leaving[position] if not self.movable[i])
        return most


def absences(residents: Residents, room_bytes: int, eviction: Eviction) -> list[Absence] | None:
    """Play the cache through; None where even the operands of one operation do not fit.

    Args:
        residents: of the order.
        room_bytes: what all instances may take together.
        eviction: who leaves first.
    """
    farthest = eviction is Eviction.FARTHEST
    there: dict[int, int] = {}
    used = 0
    queue: list[tuple[int, int, int]] = []
    found: list[Absence] = []

    def touch(instance: int, position: int) -> None:
        after = residents.uses_after(instance, position)
        there[instance] = position
        if residents.movable[instance] and after:
            heappush(queue, (-after[0] if farthest else position, -residents.nbytes[instance], instance))

    for position, operands in enumerate(residents.operands):
        arriving = residents.arriving[position]
        missing = [i for i in operands if i not in there and i not in arriving]
        nbytes = residents.nbytes
        need = sum(nbytes[i] for i in (*arriving, *missing)) - sum(nbytes[i] for i in residents.handed_over[position])
        locked: list[tuple[int, int, int]] = []
        while used + need > room_bytes:
            if not queue or not position:
                return None
            entry = heappop(queue)
            instance = entry[2]
            if instance not in there or entry[0] != _key(residents, instance, there[instance], farthest):
                continue
            if instance in operands:
                locked.append(entry)
                continue
            used -= nbytes[instance]
            del there[instance]
            next_use = residents.next_use(instance, position)
            found.append(Absence(instance, residents.last_use(instance, position), position, next_use))
        for entry in locked:
            heappush(queue, entry)
        used += need
        for instance in (*operands, *arriving):
            touch(instance, position)
        for instance in residents.leaving[position]:
            if there.pop(instance, None) is not None and instance not in residents.handed_over[position]:
                used -= nbytes[instance]
    return found


def _key(residents: Residents, instance: int, touched: int, farthest: bool) -> int:
    return -residents.uses_after(instance, touched)[0] if farthest else touched
