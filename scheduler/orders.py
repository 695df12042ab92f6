"""Orders of operations that strategies propose, and what they become: instances with kernels and addresses.

An order and the kernels fix everything else (`draft`, `placement`). Pure, like all of planning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..layers.graph import STATE, Graph, Phase
from .costs import CostTable
from .draft import Draft, aligned_size, draft
from .kernels import Choice, Kernels, fastest_that_fits, least_workspace
from .placement import Rectangle, StateLayout, place
from .plan import NO_TENSOR

ATTEMPTS = 8
"""How often a chain plan, or a choice of kernels, is made again for less memory because its placement did not fit."""


@dataclass(frozen=True, slots=True)
class Problem:
    """All that a planner may look at.

    Attributes:
        graph: lowered, with blocks.
        costs: kernels and seconds of every operation.
        kernels: whether kernels follow the free bytes.
        state: addresses of parameters, statistics and momentum.
    """

    graph: Graph
    costs: CostTable
    kernels: Kernels
    state: StateLayout


@dataclass(frozen=True, slots=True)
class Placed:
    """An order with instances, kernels and addresses."""

    order: Sequence[int]
    draft: Draft
    addresses: list[int]
    end: int


class Placer:
    """Gives orders of one graph their instances and addresses."""

    def __init__(self, problem: Problem, *, whole_step: bool) -> None:
        self.problem = problem
        self.choose = least_workspace(problem.costs, problem.kernels)
        self._whole_step = whole_step

    def drafted(self, order: Sequence[int], choose: Choice | None = None) -> Draft:
        """Instances without addresses; by default with the kernels that memory is planned with."""
        return draft(self.problem.graph, order, choose or self.choose, whole_step=self._whole_step)

    def placed(self, order: Sequence[int], choose: Choice | None = None, enough: int | None = None) -> Placed:
        """Draft and place; `enough` is that of `place`."""
        return self.located(order, self.drafted(order, choose), enough)

    def located(self, order: Sequence[int], drafted: Draft, enough: int | None = None) -> Placed:
        """Give the instances of `order` addresses."""
        graph, state = self.problem.graph, self.problem.state
        fixed = {
            instance: state.addresses[graph.tensors[tensor].name]
            for instance, tensor in enumerate(drafted.tensor)
            if tensor != NO_TENSOR and graph.tensors[tensor].role in STATE
        }
        buffers = drafted.buffers()
        free = [buffer for buffer in buffers if buffer not in fixed]
        found, _ = place([Rectangle(*buffers[buffer]) for buffer in free], state.nbytes, enough)
        at = {**fixed, **dict(zip(free, found, strict=True))}
        addresses = [at[buffer] for buffer in drafted.buffer]
        end = max((a + n for a, n in zip(addresses, drafted.nbytes, strict=True)), default=0)
        return Placed(order, drafted, addresses, end)

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
        tensors = self.problem.graph.tensors
        state = sum(
            nbytes
            for tensor, nbytes in zip(drafted.tensor, drafted.nbytes, strict=True)
            if tensor != NO_TENSOR and tensors[tensor].role in STATE
        )
        live = drafted.live_bytes()
        return self.problem.state.nbytes - state + (int(live.max()) if len(live) else 0)

    def with_fastest_kernels(self, planned: Placed, budget_bytes: int) -> Placed:
        """The same order with the fastest kernels whose workspace fits into what the plan leaves free."""
        room = budget_bytes
        for _ in range(ATTEMPTS):
            faster = self.placed(planned.order, fastest_that_fits(self.problem.costs, planned.draft, room))
            if faster.end <= budget_bytes:
                return faster
            room -= faster.end - budget_bytes
        return planned

    def finished(self, planned: Placed, budget_bytes: int) -> Placed:
        """As it will run: with the fastest kernels that fit, where kernels follow the free bytes."""
        return self.with_fastest_kernels(planned, budget_bytes) if self.problem.kernels is Kernels.FIT else planned

    def seconds(self, drafted: Draft) -> float:
        """Seconds of all steps with their kernels."""
        kernels = self.problem.costs.kernels
        return sum(kernels[step.op][step.kernel].seconds for step in drafted.steps)


class Orders(Protocol):
    """Proposes orders of one graph."""

    def smallest(self) -> Placed:
        """The plan of least memory."""
        ...

    def fastest(self, budget_bytes: int) -> Placed | None:
        """The plan of least time that fits; None where none is found."""
        ...
