"""More memory is no slower plan, for strategies that move tensors and for the chain."""

from dataclasses import replace

import pytest

from bathyal.models import MODELS, build_model
from bathyal.scheduler.layout.placer import Placer
from bathyal.scheduler.plan.link import Link
from bathyal.scheduler.planner import StrategyPlanner
from bathyal.scheduler.strategies.ladder import Ladder
from tests.support.random_networks import random_problem, step_problem

BUDGETS = 20
STRATEGIES = ("offload", "stream", "auto", "chain")


def find_rises(problem, strategy, rate):
    """The budgets, of 20 from the least to what is used without a limit, that are slower than a smaller one."""
    problem = replace(problem, costs=replace(problem.costs, link=Link(rate, rate)))
    planner = StrategyPlanner(problem, strategy)
    least = planner.least_bytes
    most = planner.plan(2**62).peak_bytes
    assert most >= least
    fastest, rises = float("inf"), {}
    for number in range(BUDGETS):
        budget = least + (most - least) * number // (BUDGETS - 1)
        seconds = planner.plan(budget).predicted_seconds
        if seconds > fastest * (1 + 1e-9):
            rises[budget] = seconds / fastest - 1
        fastest = min(fastest, seconds)
    return rises


@pytest.mark.parametrize("seed", range(12))
def test_no_random_network_is_slower_in_more_memory(seed):
    """They were, by up to 290 %: what is tried for a budget depends on it."""
    for strategy in STRATEGIES[seed % 2 :: 2]:
        assert not find_rises(random_problem(seed), strategy, (1e9, 1e8)[seed // 2 % 2]), strategy


@pytest.mark.parametrize("name", ["alexnet", "vgg11"])
def test_no_bundled_network_is_slower_in_more_memory(name):
    shape = (4, MODELS[name].channels, MODELS[name].image_side, MODELS[name].image_side)
    assert not find_rises(step_problem(build_model(name), shape), "auto", 1e9)


def test_a_search_that_fails_above_does_not_hide_what_was_found_below():
    problem = random_problem(1)
    placer = Placer(problem, whole_step=False)
    placed = placer.place_order([op.id for op in problem.graph.ops])
    searched = []

    def search(budget):
        searched.append(budget)
        return placed if budget <= placed.end + 4096 else None

    ladder = Ladder(placer, placed.end, search)
    assert ladder.find_fastest(2 * placed.end) is placed
    assert searched == sorted(searched, reverse=True)
    count = len(searched)
    assert ladder.find_fastest(3 * placed.end) is placed
    assert ladder.find_fastest(2 * placed.end) is placed
    assert len(set(searched)) == len(searched) > count, "each rung is searched once"


def test_below_the_lowest_rung_nothing_is_searched():
    placer = Placer(random_problem(1), whole_step=False)
    searched = []
    assert Ladder(placer, 50_000, searched.append).find_fastest(40_000) is None
    assert not searched
