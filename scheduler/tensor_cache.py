"""Which tensors leave the arena while a step runs: a cache of bytes, played through before anything runs.

Every operation has its operands in the arena. Where what it needs does not fit beside what is there, others leave:
the least recently used, or those whose next use is farthest. Operands of the running operation are locked; workspace,
what is smaller than a page and the state that lies in the arena stay. A tensor that is there when it is read moves no
byte. State whose home is outside comes with its first use; once it is updated it stays until its bytes are needed or the
step ends.

Decides who is away between which uses; `transfers` decides when the bytes move. Not checked: whether that pays.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: tensor cache (LRU). Farthest next use: Belady, "A study
of replacement algorithms", 1966, possible because the order is known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
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
        last_use: position after which it may leave; -1 before the first use of state.
        gone: position at which its bytes are needed for others; the number of positions where nobody needs them.
        next_use: position at which it must be back; the number of positions where nobody reads it again.
        changed: whether it holds what the memory outside does not.
    """

    instance: int
    last_use: int
    gone: int
    next_use: int
    changed: bool


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
        at_home: instances of state whose home is outside.
        updated: of those of them that are updated, where.
    """

    def __init__(self, graph: Graph, drafted: Draft, outside: Container[int] = ()) -> None:
        count = len(drafted.steps)
        self.movable = [
            t != NO_TENSOR and (t in outside or (graph.tensors[t].role in MOVABLE and n >= PAGE))
            for t, n in zip(drafted.tensor, drafted.nbytes, strict=True)
        ]
        self.at_home = {i for i, t in enumerate(drafted.tensor) if t in outside}
        self.updated: dict[int, int] = {}
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
            if instance not in self.at_home:
                self.arriving[drafted.birth[instance]].append(instance)
            self.leaving[drafted.death[instance]].append(instance)
        for position, step in enumerate(drafted.steps):
            assert isinstance(step, Run)
            workspace = () if step.workspace == NO_INSTANCE else (step.workspace,)
            self.operands.append(tuple(dict.fromkeys((*step.inputs, *step.outputs, *workspace))))
            for instance in self.operands[-1]:
                if self._uses[instance][-1] < position:
                    self._uses[instance].append(position)
            updates = graph.ops[step.op].updates
            for instance, t in zip(step.inputs, graph.ops[step.op].inputs, strict=True):
                if t in updates and instance in self.at_home:
                    self.updated[instance] = position
        for instance, (uses, death) in enumerate(zip(self._uses, drafted.death, strict=True)):
            if uses[-1] < death:
                # Otherwise an output that was away could come back at the end to where there is no room for it.
                uses.append(death)
                self.operands[death] += (instance,)

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
                now = sum(self.nbytes[i] for i in {*operands, *self.arriving[0]} if self.movable[i])
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
    return _Cache(residents, room_bytes, eviction is Eviction.FARTHEST).played()


class _Cache:
    """What is in the arena while the order is played.

    An entry of the queue says when its instance was touched; it is out of date when that has changed since.
    """

    def __init__(self, residents: Residents, room_bytes: int, farthest: bool) -> None:
        self._residents = residents
        self._room = room_bytes
        self._farthest = farthest
        self._end = len(residents.operands)
        self._there: dict[int, int] = {}
        self._used = 0
        self._queue: list[tuple[int, int, int, int]] = []
        self._found: list[Absence] = []
        self._outside: set[int] = set()

    def played(self) -> list[Absence] | None:
        residents, nbytes = self._residents, self._residents.nbytes
        for position, operands in enumerate(residents.operands):
            arriving, handed_over = residents.arriving[position], residents.handed_over[position]
            missing = [i for i in operands if i not in self._there and i not in arriving]
            for instance in missing:
                if instance in residents.at_home and instance not in self._outside:
                    self._outside.add(instance)
                    self._found.append(Absence(instance, -1, 0, position, False))
            need = sum(nbytes[i] for i in (*arriving, *missing)) - sum(nbytes[i] for i in handed_over)
            if not self._make_room(need, position, operands):
                return None
            self._used += need
            for instance in (*operands, *arriving):
                self._touch(instance, position)
            for instance in residents.leaving[position]:
                if instance in residents.updated:
                    continue
                if self._there.pop(instance, None) is not None and instance not in handed_over:
                    self._used -= nbytes[instance]
        for instance in sorted(self._there.keys() & residents.updated.keys()):
            self._leave(instance, self._end)
        return self._found

    def _make_room(self, need: int, position: int, locked: Container[int]) -> bool:
        """Let others leave until what comes fits."""
        passed = []
        while self._used + need > self._room and self._queue and position:
            entry = heappop(self._queue)
            instance, touched = entry[2:]
            if self._there.get(instance) != touched:
                continue
            if instance in locked:
                passed.append(entry)
                continue
            self._leave(instance, position)
            self._used -= self._residents.nbytes[instance]
        for entry in passed:
            heappush(self._queue, entry)
        return self._used + need <= self._room

    def _touch(self, instance: int, position: int) -> None:
        self._there[instance] = position
        residents = self._residents
        after = residents.uses_after(instance, position)
        if residents.movable[instance] and (after or instance in residents.updated):
            next_use = after[0] if after else self._end
            rank = -next_use if self._farthest else position
            heappush(self._queue, (rank, -residents.nbytes[instance], instance, position))

    def _leave(self, instance: int, position: int) -> None:
        touched = self._there.pop(instance)
        residents = self._residents
        after = residents.uses_after(instance, touched)
        changed = instance not in residents.at_home or residents.updated.get(instance, self._end) <= touched
        self._found.append(Absence(instance, touched, position, after[0] if after else self._end, changed))
