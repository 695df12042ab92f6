"""Orders of operations that strategies propose, and what they become: instances with kernels and addresses.

An order and the kernels fix everything else (`draft`, `placement`). Pure, like all of planning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..layers.graph import Graph, Phase
from .costs import CostTable
from .draft import Draft, Stays, aligned_size, draft
from .kernels import Choice, Kernels, fastest_that_fits, least_workspace
from .moves import Order
from .placement import Rectangle, place
from .plan import ALIGNMENT, NO_TENSOR, PAGE
from .simulate import play
from .state_layout import StateLayout

ATTEMPTS = 8
"""How often a chain plan, or a choice of kernels, is made again for less memory because its placement did not fit."""


@dataclass(frozen=True, slots=True)
class Problem:
    """All that a planner may look at.

    Attributes:
        graph: lowered, with blocks.
        costs: kernels and seconds of every operation.
        kernels: whether kernels follow the free bytes.
        state: where parameters, statistics and momentum lie.
        fixed_state: whether other programs rely on that; else a strategy may leave part of it outside the arena.
        most_outside_bytes: that may be outside the arena at a time; None for no limit.
    """

    graph: Graph
    costs: CostTable
    kernels: Kernels
    state: StateLayout
    fixed_state: bool = False
    most_outside_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """An order with instances, kernels and addresses.

    Attributes:
        order: operations and moves.
        draft: its instances and copies.
        addresses: of the instances.
        end: the highest end of an instance.
        outside: addresses of the copies.
        outside_end: the highest end of a copy.
        state: where the state lies.
        settled: whether its kernels and addresses are not to be chosen anew.
        note: what was chosen, for people.
    """

    order: Order
    draft: Draft
    addresses: list[int]
    end: int
    outside: list[int]
    outside_end: int
    state: StateLayout
    settled: bool = False
    note: str = ""


class Placer:
    """Gives orders of one graph their instances and addresses."""

    def __init__(self, problem: Problem, *, whole_step: bool) -> None:
        self.problem = problem
        self.choose = least_workspace(problem.costs, problem.kernels)
        self._whole_step = whole_step

    def drafted(self, order: Order, choose: Choice | None = None, state: StateLayout | None = None) -> Draft:
        """Instances without addresses.

        Args:
            order: operations and moves.
            choose: kernels; by default those that memory is planned with.
            state: where the state lies; by default as the problem says.
        """
        graph, state = self.problem.graph, state or self.problem.state
        outside = state.tensors_outside(graph)
        return draft(graph, order, choose or self.choose, whole_step=self._whole_step, outside=outside)

    def placed(self, order: Order, choose: Choice | None = None, enough: int | None = None) -> Placed:
        """Draft and place; `enough` is that of `place`."""
        return self.located(order, self.drafted(order, choose), enough)

    def located(self, order: Order, drafted: Draft, enough: int | None = None) -> Placed:
        """Give the instances of `order` addresses."""
        graph, state = self.problem.graph, self.problem.state
        fixed = {
            instance: state.addresses[graph.tensors[tensor].name]
            for instance, tensor in enumerate(drafted.tensor)
            if tensor != NO_TENSOR and graph.tensors[tensor].name in state.addresses
        }
        buffers = drafted.buffers()
        free = [buffer for buffer in buffers if buffer not in fixed]
        paged = drafted.paged
        shapes = [Rectangle(*buffers[b], PAGE if b in paged else ALIGNMENT) for b in free]
        found, _ = place(shapes, state.nbytes, enough)
        at = {**fixed, **dict(zip(free, found, strict=True))}
        return self.at(order, drafted, [at[buffer] for buffer in drafted.buffer], state)

    def at(
        self, order: Order, drafted: Draft, addresses: list[int], state: StateLayout, settled: bool = False
    ) -> Placed:
        """Instances at addresses that are known, and copies at such that are found."""
        end = max((a + n for a, n in zip(addresses, drafted.nbytes, strict=True)), default=0)
        outside = self._located_outside(drafted.copies, state)
        outside_end = max((a + n for a, n in zip(outside, drafted.copies.nbytes, strict=True)), default=0)
        return Placed(order, drafted, addresses, end, outside, outside_end, state, settled)

    def _located_outside(self, copies: Stays, state: StateLayout) -> list[int]:
        """Addresses of the copies: of the state at home, of all others above."""
        names = [self.problem.graph.tensors[t].name for t in copies.tensor]
        others = [n for n, name in enumerate(names) if name not in state.outside]
        shapes = [Rectangle(copies.birth[n], copies.death[n], copies.nbytes[n]) for n in others]
        found, _ = place(shapes, state.outside_nbytes)
        at = dict(zip(others, found, strict=True))
        return [at[n] if n in at else state.outside[name] for n, name in enumerate(names)]

    def least_at_loss(self) -> int:
        """What the graph's own order cannot end below, found without a draft: the state, and what is live at the loss."""
        graph = self.problem.graph
        made: set[int] = set()
        read: set[int] = set()
        passed = False
        for op in graph.ops:
            passed = passed or op.phase is not Phase.FORWARD
            if passed:
                read.update(op.inputs)
            else:
                made.update(op.outputs)
        return self.problem.state.nbytes + sum(aligned_size(graph.tensors[t]) for t in made & read)

    def least_end(self, drafted: Draft) -> int:
        """What no placement can end below: the state, and the most of all else that lives at once."""
        tensors, state = self.problem.graph.tensors, self.problem.state
        resident = sum(
            nbytes
            for tensor, nbytes in zip(drafted.tensor, drafted.nbytes, strict=True)
            if tensor != NO_TENSOR and tensors[tensor].name in state.addresses
        )
        live = drafted.live_bytes()
        return state.nbytes - resident + (int(live.max()) if len(live) else 0)

    def with_fastest_kernels(self, planned: Placed, budget_bytes: int) -> Placed:
        """The same order with the fastest kernels whose workspace fits into what the plan leaves free."""
        room = budget_bytes
        for _ in range(ATTEMPTS):
            choose = fastest_that_fits(self.problem.costs, planned.draft, room)
            faster = replace(self.placed(planned.order, choose), note=planned.note)
            if faster.end <= budget_bytes:
                return faster if self.seconds(faster.draft) < self.seconds(planned.draft) else planned
            room -= faster.end - budget_bytes
        return planned

    def finished(self, planned: Placed, budget_bytes: int) -> Placed:
        """As it will run: with the fastest kernels that fit, where kernels follow the free bytes."""
        if planned.settled or self.problem.kernels is not Kernels.FIT:
            return planned
        return self.with_fastest_kernels(planned, budget_bytes)

    def seconds(self, drafted: Draft) -> float:
        """Seconds of a step, by which plans are compared."""
        starts, _ = play(drafted.steps, drafted.copies.nbytes, self.problem.costs)
        return float(starts[-1])

    def smallest_of(self, found: Iterable[Placed]) -> Placed:
        """The one of least memory, of equals the faster."""
        return min(found, key=lambda placed: (placed.end, self.seconds(placed.draft)))

    def fastest_of(self, proposed: Iterable[Placed | None], budget_bytes: int) -> Placed | None:
        """The fastest with the kernels that fit beside it, of equals the first; None where nothing is proposed."""
        found = [placed for placed in proposed if placed is not None]
        if len(found) < 2:
            return found[0] if found else None
        finished = [self.finished(placed, budget_bytes) for placed in found]
        return found[min(range(len(found)), key=lambda i: self.seconds(finished[i].draft))]


class Orders(Protocol):
    """Proposes orders of one graph."""

    def smallest(self) -> Placed:
        """The plan of least memory."""
        ...

    def fastest(self, budget_bytes: int) -> Placed | None:
        """The plan of least time that fits; None where none is found."""
        ...


class BestOf:
    """Proposes the best of what several propose."""

    def __init__(self, placer: Placer, proposing: Sequence[Orders]) -> None:
        self._placer, self._proposing = placer, proposing

    def smallest(self) -> Placed:
        """The plan of least memory."""
        return self._placer.smallest_of(orders.smallest() for orders in self._proposing)

    def fastest(self, budget_bytes: int) -> Placed | None:
        """The fastest; None where none has a plan."""
        return self._placer.fastest_of((orders.fastest(budget_bytes) for orders in self._proposing), budget_bytes)
