"""From a lowered graph, a cost table and a budget to a verified plan.

A strategy is a name for how orders of operations are proposed. A proposal is drafted and given addresses; the first
that fits the arena is given the fastest kernels that fit beside it. Pure: the same input gives the same plan.

`keep` and `liveness` run the graph in its own order; `chain` does so too while that fits, then follows the optimal
chain plan, and at last the plan of least memory. `sequential` and `revolve` are the patterns that others use, on the same
blocks. `offload` and `superneurons` move tensors out over a link, the latter computes cheap ones again too; `stream` may
leave state outside as well. `auto` is the best of `chain` and, where there is a link, `stream`. Where state is outside
already, because another program of the run has put it there, every strategy moves.
"""

from __future__ import annotations

from dataclasses import replace

from ..layers.graph import Graph
from ..memory.errors import BudgetError
from ..memory.sizes import format_size
from .blocks.bounds import knapsack_seconds
from .layout.lifetimes import Lifetimes
from .layout.placer import PlacedOrder, Placer
from .layout.problem import Problem
from .plan.link import Link
from .plan.simulate import simulate
from .plan.steps import Instance, Plan
from .plan.verify import verify
from .strategies.baselines import BaselineStrategy, plain_model
from .strategies.chain import ChainStrategy
from .strategies.names import MOVING, STRATEGIES, StrategyName, parse_strategy
from .strategies.offload import OffloadStrategy
from .strategies.registry import BestOf, Strategy

__all__ = ["STRATEGIES", "Problem", "StrategyPlanner", "make_plan", "min_budget"]


def make_plan(problem: Problem, strategy: str, budget_bytes: int) -> Plan:
    """Make and verify the plan of `strategy` within `budget_bytes`.

    Raises:
        ConfigError: no such strategy, or more segments than the network has blocks; names the nearest.
        BudgetError: nothing fits; names the smallest budget that works.
    """
    return StrategyPlanner(problem, strategy).plan(budget_bytes)


def min_budget(problem: Problem) -> int:
    """The smallest budget in bytes for which `chain` has a plan of `problem`: the arena of its plan of least memory."""
    return StrategyPlanner(problem, "chain").least_bytes


class StrategyPlanner:
    """Plans one problem with one strategy for any number of budgets; what does not depend on the budget is done once.

    Args:
        problem: all that may be looked at.
        strategy: its name, as `make_plan` takes it.

    Raises:
        ConfigError: as `make_plan` does.
    """

    def __init__(self, problem: Problem, strategy: str) -> None:
        self.problem = problem
        self.strategy: StrategyName = parse_strategy(strategy)
        self._placer = Placer(problem, whole_step=self.strategy.name == "keep")
        name, training = self.strategy.name, _is_training(problem.graph)
        self._natural: PlacedOrder | None = None
        self._orders: Strategy | None = None
        self._chain: ChainStrategy | None = None
        self._own_order = [op.id for op in problem.graph.ops]
        self._runs_once = False
        self._own_draft: Lifetimes | None = None
        self._own_least = 0 if name == "keep" else self._placer.least_at_loss()
        if training and name in ("sequential", "revolve"):
            self._orders = BaselineStrategy(self._placer, self.strategy, plain_model(self._placer))
        elif problem.state.outside:
            own = self.strategy if name in MOVING else StrategyName("offload")
            self._orders = OffloadStrategy(self._placer, own)
        else:
            self._runs_once = True
            if training and name in ("auto", "chain"):
                self._orders = self._chain = ChainStrategy(self._placer)
                if name == "auto" and problem.costs.link is not None:
                    moving = OffloadStrategy(self._placer, StrategyName("stream"), self._chain)
                    self._orders = BestOf(self._placer, [self._chain, moving])
            elif training and name in MOVING:
                chain = ChainStrategy(self._placer) if name == "stream" else None
                self._orders = OffloadStrategy(self._placer, self.strategy, chain)
        smallest = None if self._orders is None else self._orders.smallest()
        proposed = [smallest, self._natural_within(None if smallest is None else smallest.end)]
        self._least = min((p for p in proposed if p is not None), key=lambda placed: placed.end)

    def _natural_within(self, nbytes: int | None) -> PlacedOrder | None:
        """The graph's own order, where a strategy takes it and it may end within `nbytes`; placing takes seconds."""
        placer = self._placer
        if self._natural is not None or not self._runs_once or (nbytes is not None and nbytes < self._own_least):
            return self._natural
        if self._own_draft is None:
            self._own_draft = placer.find_lifetimes(self._own_order)
            self._own_least = placer.least_end(self._own_draft)
        if nbytes is None or self._own_least <= nbytes:
            placed = placer.place_lifetimes(self._own_order, self._own_draft)
            self._natural = replace(placed, note="every operation once, in the network's order")
        return self._natural

    @property
    def least_bytes(self) -> int:
        """The smallest budget that works."""
        return self._least.end

    def plan(self, budget_bytes: int) -> Plan:
        """The verified plan within `budget_bytes`.

        Raises:
            BudgetError: nothing fits; names the smallest budget that works.
        """
        least, problem = self._least, self.problem
        if budget_bytes < least.end:
            raise BudgetError(
                f"memory for strategy {str(self.strategy)!r}",
                f"at least {least.end} bytes ({format_size(least.end)})",
                f"{budget_bytes} bytes ({format_size(budget_bytes)})",
                self._hint(),
                least_bytes=least.end,
            )
        natural = self._natural_within(budget_bytes)
        if natural is not None and natural.end <= budget_bytes:
            chosen = natural
        else:
            chosen = (self._orders.fastest(budget_bytes) if self._orders is not None else None) or least
        chosen = self._placer.finish(chosen, budget_bytes)
        plan = _plan(problem, str(self.strategy), budget_bytes, chosen, least.end)
        if self._chain is not None:
            plan = replace(plan, chain_bound_seconds=self._chain.bound_seconds(budget_bytes))
        verify(plan, problem.graph, problem.costs, chosen.state)
        return plan

    def _hint(self) -> str:
        """Which strategies need less, the first of them without a disk."""
        name, problem = self.strategy.name, self.problem
        words = []
        if _is_training(problem.graph) and name not in ("auto", "chain", *MOVING):
            needs = StrategyPlanner(problem, "chain").least_bytes
            words.append(f"Strategy 'chain' needs {needs} bytes ({format_size(needs)}).")
        streams = name == "stream" or (name == "auto" and problem.costs.link is not None)
        if _is_training(problem.graph) and not streams and not problem.fixed_state:
            placer = Placer(problem, whole_step=False)
            least = OffloadStrategy(placer, StrategyName("stream"), link=Link(1.0, 1.0)).smallest().end
            words.append(f"With a disk (--spill-dir) 'stream' needs {least} bytes ({format_size(least)}).")
        return " ".join(words) or "Give more memory, a smaller batch or smaller images."


def _is_training(graph: Graph) -> bool:
    return any(op.forward_op != op.id for op in graph.ops)


def _plan(problem: Problem, strategy: str, budget_bytes: int, chosen: PlacedOrder, least_bytes: int) -> Plan:
    lifetimes, copies = chosen.lifetimes, chosen.lifetimes.copies
    plan = Plan(
        strategy=strategy,
        graph=problem.graph.fingerprint(),
        steps=tuple(lifetimes.steps),
        instances=tuple(
            map(Instance, lifetimes.tensor, lifetimes.birth, lifetimes.death, lifetimes.nbytes, chosen.addresses)
        ),
        copies=tuple(map(Instance, copies.tensor, copies.birth, copies.death, copies.nbytes, chosen.outside)),
        outside_bytes=chosen.outside_end,
        peak_bytes=chosen.end,
        live_peak_bytes=0,
        budget_bytes=budget_bytes,
        min_budget_bytes=least_bytes,
        predicted_seconds=0.0,
        lower_bound_seconds=0.0,
        chain_bound_seconds=0.0,
        note=chosen.note,
    )
    timeline = simulate(plan, problem.costs)
    return replace(
        plan,
        live_peak_bytes=timeline.peak_bytes,
        predicted_seconds=timeline.seconds,
        lower_bound_seconds=knapsack_seconds(problem.graph, problem.costs, budget_bytes),
    )
