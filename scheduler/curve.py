"""Time against memory: plans of several strategies at budgets from the least that works to no limit.

Source: the experiment of Herrmann, Beaumont et al., arXiv 1911.13214, section 5; the certified lower bound is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .layout.problem import Problem
from .plan.steps import Plan
from .planner import StrategyPlanner

NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Point:
    """A plan in numbers.

    Attributes:
        strategy: its name.
        budget_bytes: what was allowed; of the last point of a strategy, what it needs where nothing is forbidden.
        min_budget_bytes: the least with which the strategy works.
        peak_bytes: what the arena must hold.
        predicted_seconds: of a step.
        lower_bound_seconds: no plan within the budget is faster.
        recomputed_ops: operations that run again.
    """

    strategy: str
    budget_bytes: int
    min_budget_bytes: int
    peak_bytes: int
    predicted_seconds: float
    lower_bound_seconds: float
    recomputed_ops: int


def trace_curve(problem: Problem, strategies: Sequence[str], count: int) -> Iterator[Point]:
    """Plan each strategy at up to `count` budgets, evenly from its least to what it uses without a limit; least first.

    A plan within less memory is a plan within more, so no point is slower than that of a smaller budget.

    Raises:
        ConfigError: no such strategy.
    """
    for strategy in strategies:
        planner = StrategyPlanner(problem, strategy)
        least = planner.least_bytes
        most = max(planner.plan(NO_LIMIT).peak_bytes, least)
        last = max(count - 1, 1)
        budgets = sorted({least + (most - least) * k // last for k in range(last + 1)})
        fastest: Plan | None = None
        # Each budget is solved by itself. Tables of the chain that several budgets share would save a tenth of the
        # time, but took up to three times the memory, and single points came out up to 0.25 % slower when placed.
        for budget in budgets:
            plan = planner.plan(budget)
            if fastest is None or plan.predicted_seconds < fastest.predicted_seconds:
                fastest = plan
            yield Point(
                plan.strategy,
                budget,
                least,
                fastest.peak_bytes,
                fastest.predicted_seconds,
                plan.lower_bound_seconds,
                fastest.recomputed_ops,
            )
