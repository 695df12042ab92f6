"""What becomes of an order that a strategy proposes: instances with kernels and addresses, which make it a plan.

An order and its kernels fix all else (`lifetimes`, `placement`). Pure: the same order always gets the same addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...layers.graph import Phase
from ...memory.errors import PlanError
from ..plan.simulate import time_steps
from ..plan.state_layout import StateLayout
from ..plan.steps import ALIGNMENT, NO_TENSOR, PAGE
from .kernels import KernelChoice, Kernels, choose_fastest_that_fits, choose_least_workspace
from .lifetimes import Lifetimes, LiveIntervals, aligned_size, find_lifetimes
from .moves import Order
from .placement import Rectangle, place
from .problem import Problem

ATTEMPTS = 8
"""So often at most a chain plan, or a choice of kernels, is made for less memory until its placement fits."""


@dataclass(frozen=True, slots=True)
class PlacedOrder:
    """An order with instances, kernels and addresses.

    Attributes:
        order: operations and moves.
        lifetimes: the instances of the order, and their copies outside the arena.
        addresses: the address of each instance.
        end: the highest end of an instance: the arena that the order needs.
        outside: the address of each copy.
        outside_end: the highest end of a copy.
        state: where the state lies.
        settled: whether kernels and addresses are to stay as they are; else the planner may look for faster kernels.
        note: what was chosen, for people.
    """

    order: Order
    lifetimes: Lifetimes
    addresses: list[int]
    end: int
    outside: list[int]
    outside_end: int
    state: StateLayout
    settled: bool = False
    note: str = ""


def require_placed(proposed: object) -> PlacedOrder:
    """Return what a strategy proposes.

    Raises:
        PlanError: it is no placed order.
    """
    if not isinstance(proposed, PlacedOrder):
        raise PlanError("strategy", "a PlacedOrder, as `Placer.place_order` makes it", repr(proposed))
    return proposed


class Placer:
    """Gives orders of one graph their instances, kernels and addresses, and compares them.

    Args:
        problem: all that a planner may look at.
        whole_step: whether every tensor has memory of its own for the whole step.

    Attributes:
        problem: as given.
        choose: the kernels that memory is planned with.
    """

    def __init__(self, problem: Problem, *, whole_step: bool) -> None:
        self.problem = problem
        self.choose = choose_least_workspace(problem.costs, problem.kernels)
        self._whole_step = whole_step

    def find_lifetimes(
        self, order: Order, choose: KernelChoice | None = None, state: StateLayout | None = None
    ) -> Lifetimes:
        """Find the instances of an order and their lifetimes, without addresses.

        Args:
            order: operations and moves.
            choose: the kernels; by default those that memory is planned with.
            state: where the state lies; by default as the problem says.

        Raises:
            PlanError: the order names no operation of the graph, reads what is not there, or waits for no transfer.
        """
        graph, state = self.problem.graph, state or self.problem.state
        outside = state.tensors_outside(graph)
        return find_lifetimes(graph, order, choose or self.choose, whole_step=self._whole_step, outside=outside)

    def is_allowed_outside(self, placed: PlacedOrder) -> bool:
        """Whether an order keeps to the limit on what may lie outside the arena."""
        most = self.problem.most_outside_bytes
        return most is None or placed.outside_end <= most

    def place_order(self, order: Order, choose: KernelChoice | None = None, enough: int | None = None) -> PlacedOrder:
        """Find the instances of an order and their addresses.

        Args:
            order: operations and moves.
            choose: the kernels; by default those that memory is planned with.
            enough: the end at which the search for addresses may stop, as in `placement.place`.

        Raises:
            PlanError: as `find_lifetimes` does.
        """
        return self.place_lifetimes(order, self.find_lifetimes(order, choose), enough)

    def place_lifetimes(self, order: Order, lifetimes: Lifetimes, enough: int | None = None) -> PlacedOrder:
        """Find addresses for the instances of `order`; `enough` is that of `place_order`."""
        graph, state = self.problem.graph, self.problem.state
        fixed = {
            instance: state.addresses[graph.tensors[tensor].name]
            for instance, tensor in enumerate(lifetimes.tensor)
            if tensor != NO_TENSOR and graph.tensors[tensor].name in state.addresses
        }
        buffers = lifetimes.buffers()
        free = [buffer for buffer in buffers if buffer not in fixed]
        paged = lifetimes.paged
        shapes = [Rectangle(*buffers[b], PAGE if b in paged else ALIGNMENT) for b in free]
        found, _ = place(shapes, state.nbytes, enough)
        at = {**fixed, **dict(zip(free, found, strict=True))}
        return self.place_at(order, lifetimes, [at[buffer] for buffer in lifetimes.buffer], state)

    def place_at(
        self, order: Order, lifetimes: Lifetimes, addresses: list[int], state: StateLayout, settled: bool = False
    ) -> PlacedOrder:
        """Take the addresses of instances as given, and find those of the copies outside."""
        end = max((a + n for a, n in zip(addresses, lifetimes.nbytes, strict=True)), default=0)
        outside = self._place_copies(lifetimes.copies, state)
        outside_end = max((a + n for a, n in zip(outside, lifetimes.copies.nbytes, strict=True)), default=0)
        return PlacedOrder(order, lifetimes, addresses, end, outside, outside_end, state, settled)

    def _place_copies(self, copies: LiveIntervals, state: StateLayout) -> list[int]:
        """Find addresses of the copies: those of the state are given, the others lie above them."""
        names = [self.problem.graph.tensors[t].name for t in copies.tensor]
        others = [n for n, name in enumerate(names) if name not in state.outside]
        shapes = [Rectangle(copies.birth[n], copies.death[n], copies.nbytes[n]) for n in others]
        found, _ = place(shapes, state.outside_nbytes)
        at = dict(zip(others, found, strict=True))
        return [at[n] if n in at else state.outside[name] for n, name in enumerate(names)]

    def least_at_loss(self) -> int:
        """Return the state's bytes with those live at the loss: the graph's own order ends no lower.

        This takes no lifetimes, so it takes little time.
        """
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

    def least_end(self, lifetimes: Lifetimes) -> int:
        """Return the state's bytes with the most that else is live at once: no placement ends lower."""
        tensors, state = self.problem.graph.tensors, self.problem.state
        state_bytes = sum(
            nbytes
            for tensor, nbytes in zip(lifetimes.tensor, lifetimes.nbytes, strict=True)
            if tensor != NO_TENSOR and tensors[tensor].name in state.addresses
        )
        live = lifetimes.live_bytes()
        return state.nbytes - state_bytes + (int(live.max()) if len(live) else 0)

    def take_fastest_kernels(self, planned: PlacedOrder, budget_bytes: int) -> PlacedOrder:
        """Place the same order with the fastest kernels whose workspace fits into what it leaves free."""
        room = budget_bytes
        for _ in range(ATTEMPTS):
            choose = choose_fastest_that_fits(self.problem.costs, planned.lifetimes, room)
            faster = replace(self.place_order(planned.order, choose), note=planned.note)
            if faster.end <= budget_bytes:
                return faster if self.seconds(faster.lifetimes) < self.seconds(planned.lifetimes) else planned
            room -= faster.end - budget_bytes
        return planned

    def finish(self, planned: PlacedOrder, budget_bytes: int) -> PlacedOrder:
        """Return the order as it will run: with the fastest kernels that fit, where kernels follow the free bytes."""
        if planned.settled or self.problem.kernels is not Kernels.FIT:
            return planned
        return self.take_fastest_kernels(planned, budget_bytes)

    def seconds(self, lifetimes: Lifetimes) -> float:
        """Return the predicted seconds of a step, by which plans are compared."""
        starts, _ = time_steps(lifetimes.steps, lifetimes.copies.nbytes, self.problem.costs)
        return float(starts[-1])

    def choose_smallest(self, found: Iterable[PlacedOrder]) -> PlacedOrder:
        """Return the one that needs the least memory; of equally small ones the faster.

        One that puts more outside than may be there is taken only where all do: the one that puts the least there.
        """

        def rank(placed: PlacedOrder) -> tuple[int, int, float]:
            over = 0 if self.is_allowed_outside(placed) else placed.outside_end
            return over, placed.end, self.seconds(placed.lifetimes)

        return min(found, key=rank)

    def choose_fastest(self, proposed: Iterable[PlacedOrder | None], budget_bytes: int) -> PlacedOrder | None:
        """Return the one that is fastest with the kernels that fit beside it; None where nothing is proposed.

        Of equally fast ones the first is taken.
        """
        found = [placed for placed in proposed if placed is not None and self.is_allowed_outside(placed)]
        if len(found) < 2:
            return found[0] if found else None
        finished = [self.finish(placed, budget_bytes) for placed in found]
        return found[min(range(len(found)), key=lambda i: self.seconds(finished[i].lifetimes))]
