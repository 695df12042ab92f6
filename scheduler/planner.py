"""From a lowered graph, a cost table and a budget to a verified plan.

A strategy is a name for how orders of operations are proposed. A proposal is drafted and given addresses; the first
that fits the arena is given the fastest kernels that fit beside it. Pure: the same input gives the same plan.

`keep` and `liveness` run the graph in its own order; `chain` does so too while that fits, then follows the optimal
chain plan, and at last the plan of least memory. `auto` is the best of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..layers.graph import STATE, Graph, Tensor
from ..memory.errors import BudgetError, one_of
from ..memory.sizes import format_size
from .bounds import knapsack_seconds
from .chain import background_bytes, chain_model, choose_kernels, expand
from .chain_dp import Step, minimum_plan, solve
from .costs import CostTable
from .draft import Draft, aligned_size, draft, without_dead_recomputations
from .kernels import Choice, Kernels, fast_gradients, fastest_that_fits, least_workspace
from .placement import Rectangle, StateLayout, place
from .plan import NO_TENSOR, Instance, Plan
from .simulate import simulate
from .verify import verify

logger = logging.getLogger(__name__)

STRATEGIES = ("auto", "keep", "liveness", "chain")
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
class _Placed:
    """An order with instances, kernels and addresses."""

    order: Sequence[int]
    draft: Draft
    addresses: list[int]
    end: int


def make_plan(problem: Problem, strategy: str, budget_bytes: int) -> Plan:
    """Make and verify the plan of `strategy` within `budget_bytes`.

    Raises:
        ConfigError: no such strategy; names the nearest.
        BudgetError: nothing fits; names the smallest budget that works.
    """
    one_of("strategy", strategy, STRATEGIES)
    planner = _Planner(problem, whole_step=strategy == "keep")
    order = [op.id for op in problem.graph.ops]
    if strategy in ("auto", "chain") and _is_training(problem.graph):
        chain = _ChainOrders(planner)
        least, chosen = chain.smallest(), None
        # Placing costs seconds where there are many steps: only what may fit is placed.
        if planner.least_end(order) <= max(budget_bytes, least.end):
            natural = planner.placed(order)
            least = min(natural, least, key=lambda placed: placed.end)
            chosen = natural if natural.end <= budget_bytes else None
        if chosen is None and least.end <= budget_bytes:
            chosen = chain.fastest(budget_bytes) or least
    else:
        least = planner.placed(order)
        chosen = least if least.end <= budget_bytes else None
    if chosen is None:
        hint = "Give more memory, a smaller batch or smaller images."
        if strategy not in ("auto", "chain") and _is_training(problem.graph):
            needs = min(least.end, _ChainOrders(_Planner(problem, whole_step=False)).smallest().end)
            hint = f"Strategy 'chain' needs {needs} bytes ({format_size(needs)})."
        raise BudgetError(
            f"memory for strategy {strategy!r}",
            f"at least {least.end} bytes ({format_size(least.end)})",
            f"{budget_bytes} bytes ({format_size(budget_bytes)})",
            hint,
            least_bytes=least.end,
        )
    if problem.kernels is Kernels.FIT:
        chosen = planner.with_fastest_kernels(chosen, budget_bytes)
    plan = _plan(problem, strategy, budget_bytes, chosen, least.end)
    verify(plan, problem.graph, problem.costs, problem.state)
    return plan


def _is_training(graph: Graph) -> bool:
    return any(op.forward_op != op.id for op in graph.ops)


def _plan(problem: Problem, strategy: str, budget_bytes: int, chosen: _Placed, least_bytes: int) -> Plan:
    drafted = chosen.draft
    plan = Plan(
        strategy=strategy,
        graph=problem.graph.fingerprint(),
        steps=tuple(drafted.steps),
        instances=tuple(map(Instance, drafted.tensor, drafted.birth, drafted.death, drafted.nbytes, chosen.addresses)),
        peak_bytes=chosen.end,
        live_peak_bytes=0,
        budget_bytes=budget_bytes,
        min_budget_bytes=least_bytes,
        predicted_seconds=0.0,
        lower_bound_seconds=0.0,
    )
    timeline = simulate(plan, problem.costs)
    return replace(
        plan,
        live_peak_bytes=timeline.peak_bytes,
        predicted_seconds=timeline.seconds,
        lower_bound_seconds=knapsack_seconds(problem.graph, problem.costs, budget_bytes),
    )


class _Planner:
    """Gives orders of one graph their instances and addresses."""

    def __init__(self, problem: Problem, *, whole_step: bool) -> None:
        self.problem = problem
        self.choose = least_workspace(problem.costs, problem.kernels)
        self._whole_step = whole_step

    def least_end(self, order: Sequence[int]) -> int:
        """What no placement of `order` can end below."""
        drafted = draft(self.problem.graph, order, self.choose, size=self._beside_the_state)
        return self.problem.state.nbytes + int(drafted.live_bytes().max())

    def _beside_the_state(self, tensor: Tensor) -> int:
        return 0 if tensor.role in STATE else aligned_size(tensor)

    def placed(self, order: Sequence[int], choose: Choice | None = None) -> _Placed:
        """Draft and place; by default with the kernels that memory is planned with."""
        graph, state = self.problem.graph, self.problem.state
        drafted = draft(graph, order, choose or self.choose, whole_step=self._whole_step)
        fixed = {
            instance: state.addresses[graph.tensors[tensor].name]
            for instance, tensor in enumerate(drafted.tensor)
            if tensor != NO_TENSOR and graph.tensors[tensor].role in STATE
        }
        buffers = drafted.buffers()
        free = [buffer for buffer in buffers if buffer not in fixed]
        found, _ = place([Rectangle(*buffers[buffer]) for buffer in free], state.nbytes)
        at = {**fixed, **dict(zip(free, found, strict=True))}
        addresses = [at[buffer] for buffer in drafted.buffer]
        end = max((a + n for a, n in zip(addresses, drafted.nbytes, strict=True)), default=0)
        return _Placed(order, drafted, addresses, end)

    def with_fastest_kernels(self, planned: _Placed, budget_bytes: int) -> _Placed:
        """The same order with the fastest kernels whose workspace fits into what the plan leaves free."""
        room = budget_bytes
        for _ in range(ATTEMPTS):
            faster = self.placed(planned.order, fastest_that_fits(self.problem.costs, planned.draft, room))
            if faster.end <= budget_bytes:
                return faster
            room -= faster.end - budget_bytes
        return planned


class _ChainOrders:
    """Proposes the orders of the chain model."""

    def __init__(self, planner: _Planner) -> None:
        self._planner = planner
        problem = planner.problem
        self._graph = problem.graph
        choices = [planner.choose]
        if problem.kernels is Kernels.FIT:
            choices.append(fast_gradients(problem.graph, problem.costs, planner.choose))
        self._model = chain_model(problem.graph, problem.costs, choices)

    def _placed(self, steps: Sequence[Step]) -> _Placed:
        order = without_dead_recomputations(self._graph, expand(self._graph, self._model, steps))
        return self._planner.placed(order, choose_kernels(self._model, steps))

    def smallest(self) -> _Placed:
        """The plan of least memory."""
        return self._placed(minimum_plan(self._model.chain))

    def fastest(self, budget_bytes: int) -> _Placed | None:
        """The optimal plan for the budget; for ever smaller ones while placement needs more than what is live."""
        room = budget_bytes - background_bytes(self._graph)
        for _ in range(ATTEMPTS):
            solution = solve(self._model.chain, room) if room > 0 else None
            if solution is None:
                logger.info("chain: no plan for %d bytes beside the state", room)
                return None
            placed = self._placed(solution.steps)
            over = placed.end - budget_bytes
            if over <= 0:
                return placed
            logger.info("chain: the plan for %d bytes beside the state is %d bytes over when placed", room, over)
            room -= max(over, room // 256)
        return None
