"""The least budget is the least: what was planned within a budget shows that so many bytes are enough."""

import pytest

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.profile import estimate
from bathyal.memory.errors import BudgetError
from bathyal.models.resnet import resnet50
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import StrategyPlanner
from bathyal.scheduler.strategies.names import STRATEGIES
from tests.support.lowered_graphs import lower_step
from tests.support.random_networks import random_problem
from tests.support.spilling import linked

SHARES = (0, 3, 40)
"""Hundredths of the least budget above it."""


def check_least(problem, strategy, shares=SHARES):
    """Plan at the least and above, at the peaks of what comes of it, and below the least, which is returned."""
    planner = StrategyPlanner(problem, strategy)
    least = planner.least_bytes
    for share in shares:
        plan = planner.plan(least + least * share // 100)
        assert least <= plan.peak_bytes <= plan.budget_bytes
        assert plan.min_budget_bytes == least
        again = planner.plan(plan.peak_bytes)
        assert least <= again.peak_bytes <= plan.peak_bytes
    with pytest.raises(BudgetError) as refused:
        planner.plan(least - 1)
    assert refused.value.least_bytes == least
    return least


@pytest.mark.parametrize(("seed", "kernels"), [(4, Kernels.FIXED), (7, Kernels.FIT)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_plan_of_a_random_network_needs_less_than_the_least(strategy, seed, kernels):
    check_least(linked(random_problem(seed, kernels), strategy, seed), strategy)


def test_no_plan_of_resnet50_needs_less_than_the_least():
    """The least budget was 302,722,688 bytes, whose plan needs 300,244,544."""
    backend = NullBackend()
    graph = lower_step(resnet50(), (8, 3, 224, 224), backend)
    problem = Problem(graph, estimate(graph, backend), Kernels.FIXED, lay_out_state(graph))
    assert check_least(problem, "chain", (0,)) <= 300_244_544
