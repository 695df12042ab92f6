"""What may lie in the arena and outside of it: every plan keeps to both limits, or is refused."""

from dataclasses import replace

import pytest

from bathyal.memory.errors import BudgetError, PlanError
from bathyal.scheduler.plan.link import Link
from bathyal.scheduler.plan.verify import verify
from bathyal.scheduler.planner import StrategyPlanner, make_plan
from tests.support.random_networks import random_problem

STRATEGIES = ("stream", "auto", "offload", "superneurons")


def limited(seed, most=None):
    problem = random_problem(seed)
    return replace(problem, costs=replace(problem.costs, link=Link(1e9, 1e9)), most_outside_bytes=most)


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_puts_more_outside_than_may_be_there(seed):
    """The plan of least memory, which is taken where nothing else is found, was never looked at."""
    kept, refused = 0, 0
    for strategy in STRATEGIES[seed % 2 :: 2]:
        free = StrategyPlanner(limited(seed), strategy)
        least, outside = free.least_bytes, free.plan(free.least_bytes).outside_bytes
        for most in (0, outside // 4, outside // 2, outside - 1, outside):
            planner = StrategyPlanner(limited(seed, most), strategy)
            for budget in (least, 2 * least, 64 * least):
                try:
                    plan = planner.plan(budget)
                except BudgetError:
                    refused += 1
                    continue
                kept += 1
                assert plan.outside_bytes <= most
                assert plan.peak_bytes <= budget
    assert kept
    assert refused


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_least_that_a_limit_allows_works(strategy):
    outside = make_plan(limited(1), strategy, StrategyPlanner(limited(1), strategy).least_bytes).outside_bytes
    problem = limited(1, outside // 2)
    least = StrategyPlanner(problem, strategy).least_bytes
    plan = make_plan(problem, strategy, least)
    assert plan.peak_bytes <= least
    assert plan.outside_bytes <= outside // 2


def test_a_limit_below_all_plans_is_refused_with_the_least_that_works():
    problem = limited(1, 0)
    least = StrategyPlanner(limited(1), "offload").least_bytes
    natural = make_plan(limited(1), "liveness", 2**30).peak_bytes
    assert make_plan(problem, "offload", natural).outside_bytes == 0
    with pytest.raises(BudgetError, match="at least"):
        make_plan(problem, "offload", least)


def test_the_verifier_looks_at_what_lies_outside():
    problem = limited(1)
    planner = StrategyPlanner(problem, "offload")
    plan = planner.plan(planner.least_bytes)
    verify(plan, problem.graph, problem.costs, problem.state, plan.outside_bytes)
    with pytest.raises(PlanError, match=f"at most {plan.outside_bytes - 1} bytes outside the arena"):
        verify(plan, problem.graph, problem.costs, problem.state, plan.outside_bytes - 1)
