"""An order of operations as a cache sees it: when instances are made, used and freed, and which may leave between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence

from ...layers.graph import STATE, Graph, Role
from ...memory.sizes import align_up
from ..layout.lifetimes import Lifetimes
from ..layout.placement import Rectangle, place
from ..plan.steps import NO_INSTANCE, NO_TENSOR, PAGE, Run

MOVABLE = frozenset({Role.ACTIVATION, Role.GRADIENT, Role.INPUT})
"""Roles of tensors that may leave."""
SMALL = 1024
"""A tensor smaller than the largest by this factor stays: a transfer of its own would cost more than its bytes."""


class UseTable:
    """The instances of an order without moves, without the state that stays in the arena.

    Small instances stay for their whole life. They lie in a stretch of their own, the `fixed` one, at addresses from 0.

    Args:
        graph: lowered.
        lifetimes: those of the order.
        outside: state whose home is outside the arena.

    Attributes:
        nbytes: the bytes of each instance, whole pages where it is not fixed.
        operands: for each position the instances that its operation reads, makes and works in, but for fixed ones; at
            the last position also what must be there at the end.
        arriving: for each position the instances that it makes; at the first also those that are there from the start.
        handed_over: for each position pairs (old, new) where an output takes the memory of an input over.
        leaving: for each position the instances that are not needed afterwards.
        movable: for each instance, whether it may leave.
        at_home: the instances of state whose home is outside.
        updated: for those of them that are updated, the position at which they are, first of all.
        fixed: the address of each small instance.
        fixed_bytes: the size of the stretch of small instances, whole pages.
    """

    def __init__(self, graph: Graph, lifetimes: Lifetimes, outside: Container[int] = ()) -> None:
        count = len(lifetimes.steps)
        largest = max((n for t, n in zip(lifetimes.tensor, lifetimes.nbytes, strict=True) if t != NO_TENSOR), default=0)
        small = max(PAGE, largest // SMALL)
        stays = {i for i, t in enumerate(lifetimes.tensor) if _stays_in_arena(graph, t, outside)}
        self.movable = [
            t != NO_TENSOR and (t in outside or (graph.tensors[t].role in MOVABLE and n >= small))
            for t, n in zip(lifetimes.tensor, lifetimes.nbytes, strict=True)
        ]
        self.nbytes = [align_up(n, PAGE) for n in lifetimes.nbytes]
        self.at_home = {i for i, t in enumerate(lifetimes.tensor) if t in outside}
        self.updated: dict[int, int] = {}
        self.fixed, self.fixed_bytes = self._place_small(lifetimes, stays)
        apart = stays | self.fixed.keys()
        self.operands: list[tuple[int, ...]] = []
        arriving: dict[int, list[int]] = {}
        leaving: dict[int, list[int]] = {}
        handed_over: dict[int, list[tuple[int, int]]] = {}
        owner: dict[int, int] = {}
        for instance, buffer in enumerate(lifetimes.buffer):
            if instance in apart:
                continue
            if buffer in owner:
                handed_over.setdefault(lifetimes.birth[instance], []).append((owner[buffer], instance))
            owner[buffer] = instance
            if instance not in self.at_home:
                arriving.setdefault(lifetimes.birth[instance], []).append(instance)
            leaving.setdefault(lifetimes.death[instance], []).append(instance)
        # At most positions no instance comes or goes: they share the empty tuple.
        self.arriving: list[Sequence[int]] = [arriving.get(p, ()) for p in range(count)]
        self.leaving: list[Sequence[int]] = [leaving.get(p, ()) for p in range(count)]
        self.handed_over: list[Sequence[tuple[int, int]]] = [handed_over.get(p, ()) for p in range(count)]
        self._uses: list[list[int]] = [[birth] for birth in lifetimes.birth]
        for position, step in enumerate(lifetimes.steps):
            assert isinstance(step, Run)
            self._note(graph, position, step, apart)
        for instance, (uses, death) in enumerate(zip(self._uses, lifetimes.death, strict=True)):
            if uses[-1] < death:
                # What must be there at the end is brought back for the last operation: later there may be no room.
                uses.append(death)
                self.operands[death] += (instance,) if instance not in apart else ()

    def _place_small(self, lifetimes: Lifetimes, stays: Container[int]) -> tuple[dict[int, int], int]:
        buffers = lifetimes.buffers()
        shared = {b for i, b in enumerate(lifetimes.buffer) if self.movable[i]}
        small = [
            b
            for b in buffers
            if b not in shared and b not in stays and not (lifetimes.tensor[b] == NO_TENSOR and buffers[b][2] >= PAGE)
        ]
        found, end = place([Rectangle(*buffers[b]) for b in small], 0)
        at = dict(zip(small, found, strict=True))
        return {i: at[b] for i, b in enumerate(lifetimes.buffer) if b in at}, align_up(end, PAGE)

    def _note(self, graph: Graph, position: int, step: Run, apart: Container[int]) -> None:
        workspace = () if step.workspace == NO_INSTANCE else (step.workspace,)
        named = dict.fromkeys((*step.inputs, *step.outputs, *workspace))
        self.operands.append(tuple(i for i in named if i not in apart))
        for instance in self.operands[-1]:
            if self._uses[instance][-1] < position:
                self._uses[instance].append(position)
        updates = graph.ops[step.op].updates
        for instance, t in zip(step.inputs, graph.ops[step.op].inputs, strict=True):
            if t in updates and instance in self.at_home:
                self.updated.setdefault(instance, position)

    def first_use(self, instance: int) -> int:
        """Return the first position that uses an instance."""
        return self._uses[instance][0]

    def next_use(self, instance: int, position: int) -> int | None:
        """Return the first position after `position` that uses an instance; None where none does."""
        uses = self._uses[instance]
        place = bisect_right(uses, position)
        return uses[place] if place < len(uses) else None

    def least_bytes(self) -> int:
        """Return the bytes below which no cache works: the most operands of one operation, and what is fixed."""
        most = 0
        for position, operands in enumerate(self.operands):
            there = {*operands, *self.arriving[0]} if not position else set(operands)  # the batch comes first
            taken = {new for _, new in self.handed_over[position]}
            most = max(most, sum(self.nbytes[i] for i in there - taken))
        return self.fixed_bytes + most


def _stays_in_arena(graph: Graph, tensor: int, outside: Container[int]) -> bool:
    return tensor != NO_TENSOR and graph.tensors[tensor].role in STATE and tensor not in outside
