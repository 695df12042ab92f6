"""Curves: from the least budget to no limit, and above the bound."""

import pytest

from bathyal.memory.errors import ConfigError
from bathyal.scheduler.curve import NO_LIMIT, trace_curve
from bathyal.scheduler.planner import StrategyPlanner, make_plan
from tests.support.random_networks import random_problem
from tests.support.spilling import linked


@pytest.mark.parametrize("seed", range(4))
def test_each_strategy_goes_from_its_least_to_no_limit(seed):
    problem = random_problem(seed)
    points = list(trace_curve(problem, ["liveness", "chain", "sequential", "revolve"], 5))
    fastest = make_plan(problem, "liveness", NO_LIMIT).predicted_seconds
    for strategy in ("liveness", "chain", "sequential", "revolve"):
        mine = [p for p in points if p.strategy == strategy]
        assert len(mine) <= 5
        assert mine[0].budget_bytes == mine[0].min_budget_bytes == StrategyPlanner(problem, strategy).least_bytes
        assert mine[-1].predicted_seconds == make_plan(problem, strategy, NO_LIMIT).predicted_seconds
        assert [p.budget_bytes for p in mine] == sorted({p.budget_bytes for p in mine})
        for point in mine:
            assert point.peak_bytes <= point.budget_bytes
            assert point.lower_bound_seconds <= point.predicted_seconds * (1 + 1e-12)
            assert point.predicted_seconds >= fastest * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_no_point_is_slower_than_one_in_less_memory_or_than_the_plan_of_its_budget(seed):
    problem = linked(random_problem(seed), "offload", seed)
    for strategy in ("chain", "offload"):
        points = list(trace_curve(problem, [strategy], 6))
        times = [point.predicted_seconds for point in points]
        assert times == sorted(times, reverse=True)
        for point in points:
            assert point.predicted_seconds <= make_plan(problem, strategy, point.budget_bytes).predicted_seconds


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ConfigError, match="revolve"):
        list(trace_curve(random_problem(0), ["revolv"], 3))
