"""From a lowered graph, a cost table and a budget to a verified plan.

A strategy proposes an order of operations, placed within the budget; the planner gives it the fastest kernels that fit
beside it, puts the plan into numbers and has it verified. The strategies and what they propose are listed in
`strategies.registry`. Pure: the same input gives the same plan.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ..memory.errors import BudgetError, PlanError
from ..memory.sizes import format_size
from .blocks.bounds import knapsack_seconds
from .layout.placer import PlacedOrder, Placer, require_placed
from .layout.problem import Problem
from .plan.link import Link
from .plan.simulate import simulate
from .plan.steps import Instance, Plan
from .plan.verify import verify
from .strategies.chain import CHAIN
from .strategies.names import parse_strategy
from .strategies.registry import (
    STRATEGIES,
    find_least_with_link,
    find_least_without_link,
    has_backward,
    make_strategy,
)
from .strategies.strategy import LinkUse, StrategyName

__all__ = ["STRATEGIES", "Problem", "StrategyPlanner", "make_plan", "min_budget"]

MOST_OPS_TO_DESCEND = 3000
"""Up to so many operations of a graph the least plan is made again for fewer bytes."""
WORTH = 256
"""It is made once more where the last time saved at least this part of its bytes."""


def make_plan(problem: Problem, strategy: str | StrategyName, budget_bytes: int) -> Plan:
    """Make and verify the plan of `strategy` within `budget_bytes`.

    Raises:
        ConfigError: there is no such strategy, it needs a link and the problem has none, or the network has fewer
            blocks than segments are asked for; names the nearest.
        BudgetError: nothing fits; names the smallest budget that works.
        PlanError: the strategy, one that was added, proposes what is no plan; names the rule that it breaks.
    """
    return StrategyPlanner(problem, strategy).plan(budget_bytes)


def min_budget(problem: Problem) -> int:
    """Return the smallest budget in bytes for which `chain` has a plan: the arena of its plan of least memory."""
    return StrategyPlanner(problem, CHAIN.name).least_bytes


class StrategyPlanner:
    """Plans one problem with one strategy for any number of budgets; what does not depend on the budget is done once.

    Args:
        problem: all that may be looked at.
        strategy: its name, as `make_plan` takes it.

    Raises:
        ConfigError: as `make_plan` does.
    """

    def __init__(self, problem: Problem, strategy: str | StrategyName) -> None:
        self.problem = problem
        self.strategy = parse_strategy(strategy)
        self._kind = STRATEGIES.find(self.strategy.name)
        self._placer = Placer(problem, whole_step=self._kind.whole_step)
        self._strategy = make_strategy(self._placer, self.strategy)

    @cached_property
    def _smallest(self) -> PlacedOrder:
        placed = require_placed(self._strategy.smallest())
        # The rest is verified with the plans that are made; the least budget is told without making one.
        missing = set(range(len(self.problem.graph.ops))).difference(placed.order)
        if missing:
            first = self.problem.graph.ops[min(missing)]
            found = f"{len(missing)} that do not, the first {first.name} ({first.kind})"
            raise PlanError(f"strategy {str(self.strategy)!r}", "every operation to run", found)
        return self._descend(placed)

    def _descend(self, smallest: PlacedOrder) -> PlacedOrder:
        """Plan for the bytes that the least plan takes, as long as what is planned for them takes clearly fewer.

        Addresses are found after an order is chosen, so the order that a strategy holds for the least is not always
        the one that ends lowest. A strategy that gives addresses itself has looked.
        """
        saves = not smallest.settled and len(self.problem.graph.ops) <= MOST_OPS_TO_DESCEND
        while saves:
            found = self._choose(smallest.end, smallest)
            saves = (smallest.end - found.end) * WORTH >= smallest.end
            if found.end < smallest.end:
                smallest = found
        return smallest

    def _choose(self, budget_bytes: int, smallest: PlacedOrder) -> PlacedOrder:
        """Choose what runs within a budget: the fastest of what is found for it and of the least plan."""
        proposed = self._strategy.fastest(budget_bytes)
        candidates = [smallest] if proposed is None else [require_placed(proposed), smallest]
        chosen = self._placer.choose_fastest(candidates, budget_bytes)
        return self._placer.finish(smallest if chosen is None else chosen, budget_bytes)

    @property
    def least_bytes(self) -> int:
        """The smallest budget that works."""
        return self._smallest.end

    def plan(self, budget_bytes: int) -> Plan:
        """Make the verified plan within `budget_bytes`.

        Raises:
            BudgetError: nothing fits; names the smallest budget that works.
            PlanError: as `make_plan` does.
        """
        least, problem = self.least_bytes, self.problem
        if budget_bytes < least:
            raise BudgetError(
                f"memory for strategy {str(self.strategy)!r}",
                f"at least {least} bytes ({format_size(least)})",
                f"{budget_bytes} bytes ({format_size(budget_bytes)})",
                self._hint(),
                least_bytes=least,
            )
        chosen = self._choose(budget_bytes, self._smallest)
        self._require_allowed_outside(chosen)
        plan = write_plan(problem, str(self.strategy), budget_bytes, chosen, least)
        plan = replace(plan, chain_bound_seconds=self._strategy.chain_bound_seconds(budget_bytes))
        verify(plan, problem.graph, problem.costs, chosen.state, problem.most_outside_bytes)
        return plan

    def _require_allowed_outside(self, chosen: PlacedOrder) -> None:
        """Refuse a limit on what lies outside the arena to which no order keeps that was found."""
        if not self._placer.is_allowed_outside(chosen):
            least, most = chosen.outside_end, self.problem.most_outside_bytes or 0
            raise BudgetError(
                f"bytes outside the arena for strategy {str(self.strategy)!r}",
                f"a limit of at least {least} bytes ({format_size(least)})",
                f"{most} bytes ({format_size(most)})",
                "Allow more there (--spill-size), give more memory, or take a strategy that moves nothing.",
            )

    def _hint(self) -> str:
        """Say which strategies need less memory, first one without a link."""
        problem, kind, words = self.problem, self._kind, []
        if has_backward(problem.graph):
            if kind.link is LinkUse.NONE and not kind.least_without_link:
                words.append(f"Strategy {_describe_need(problem, find_least_without_link())}.")
            has_least = kind.least_with_link and problem.costs.link is not None
            if not has_least and not problem.fixed_state:
                linked = replace(problem, costs=replace(problem.costs, link=Link(1.0, 1.0)))
                words.append(f"With a disk (--spill-dir) {_describe_need(linked, find_least_with_link())}.")
        if problem.most_outside_bytes is not None and kind.link is not LinkUse.NONE:
            most = format_size(problem.most_outside_bytes)
            words.append(f"At most {most} may lie outside the arena: with more (--spill-size) less memory may do.")
        return " ".join(words) or "Give more memory, a smaller batch or smaller images."


def _describe_need(problem: Problem, strategy: str) -> str:
    needs = StrategyPlanner(problem, strategy).least_bytes
    return f"{strategy!r} needs {needs} bytes ({format_size(needs)})"


def write_plan(problem: Problem, strategy: str, budget_bytes: int, chosen: PlacedOrder, least_bytes: int) -> Plan:
    """Write a placed order as a plan, with its predicted seconds and the lower bound; the plan is not verified yet.

    Args:
        problem: what was planned.
        strategy: the name that the plan gives for its strategy.
        budget_bytes: what the plan was made for.
        chosen: the order, its instances and their addresses.
        least_bytes: the smallest budget that works.
    """
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
