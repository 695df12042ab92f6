"""Which kernels are chosen, and that the choice never costs a byte that is not there."""

import dataclasses

import pytest

from bathyal.layers.graph import Phase, Role
from bathyal.scheduler.blocks.model import choose_kernels, count_background_bytes, expand, model_chain
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.solve import solve
from bathyal.scheduler.chain.step_writer import keep_everything
from bathyal.scheduler.layout.kernels import (
    Kernels,
    choose_fast_gradients,
    choose_fastest_that_fits,
    choose_least_workspace,
)
from bathyal.scheduler.layout.lifetimes import Lifetimes, find_lifetimes
from bathyal.scheduler.plan.costs import CostTable, KernelCost
from bathyal.scheduler.plan.steps import NO_INSTANCE, NO_TENSOR, Run
from bathyal.scheduler.planner import StrategyPlanner, make_plan
from bathyal.scheduler.strategies.names import STRATEGIES
from tests.support.random_networks import random_problem
from tests.support.spilling import needs_link

FIRST, SMALLEST, LARGE = KernelCost("first", 512, 3.0), KernelCost("smallest", 64, 4.0), KernelCost("large", 1024, 1.0)
COSTS = CostTable(((FIRST, SMALLEST, LARGE),))


def twice(first_live, second_live, workspace=64):
    """One operation that runs twice, beside other tensors of so many bytes; its own workspace comes on top."""
    steps = [Run(0, 1, (), (), 2, False), Run(0, 1, (), (), 3, True)]
    return Lifetimes(
        [0, 1, NO_TENSOR, NO_TENSOR],
        [0, 1, 0, 1],
        [0, 1, 0, 1],
        [first_live, second_live, workspace, workspace],
        steps=steps,
        buffer=[0, 1, 2, 3],
    )


def test_fixed_takes_the_first_whatever_it_needs():
    assert choose_least_workspace(COSTS, Kernels.FIXED)(0) == (0, 512)
    assert choose_least_workspace(COSTS, Kernels.FIT)(0) == (1, 64)


def test_the_fastest_that_fits_beside_all_runs():
    assert choose_fastest_that_fits(COSTS, twice(0, 0), 1024)(0) == (2, 1024)
    assert choose_fastest_that_fits(COSTS, twice(0, 0), 1023)(0) == (0, 512)
    for live in ((512, 64), (64, 512)):
        assert choose_fastest_that_fits(COSTS, twice(*live), 1024)(0) == (0, 512)
        assert choose_fastest_that_fits(COSTS, twice(*live), 1024 + 512)(0) == (2, 1024)


def test_the_smallest_where_nothing_fits():
    assert choose_fastest_that_fits(COSTS, twice(0, 0), 0)(0) == (1, 64)


def test_without_workspace_nothing_is_given_back():
    planned = twice(448, 0)
    planned.steps[0] = dataclasses.replace(planned.steps[0], workspace=NO_INSTANCE)
    planned.nbytes[2] = 0
    assert choose_fastest_that_fits(COSTS, planned, 1024)(0) == (0, 512)


@pytest.mark.parametrize("seed", range(0, 12, 3))
def test_faster_kernels_never_exceed_the_budget_nor_cost_time(seed):
    """Kernels that are the faster the more they need, at budgets where not all can have what they want."""
    problem = random_problem(seed, Kernels.FIT)
    row = tuple(KernelCost(f"with {n} bytes", n, 1.0 / (1 + n)) for n in (0, 320, 1600, 6400, 25600))
    problem = dataclasses.replace(problem, costs=CostTable((row,) * len(problem.graph.ops)))
    for strategy in (name for name in STRATEGIES if not needs_link(name)):
        planner = StrategyPlanner(problem, strategy)
        least = planner.least_bytes
        slowest = make_plan(dataclasses.replace(problem, kernels=Kernels.FIXED), strategy, least)
        for extra in (0, 64, 960, 3200, 9600, 20480):
            plan = planner.plan(least + extra)
            assert plan.peak_bytes <= least + extra
            assert plan.predicted_seconds <= slowest.predicted_seconds
        assert planner.plan(2**40).predicted_seconds < slowest.predicted_seconds


def test_fast_kernels_of_the_backward_pass_are_bought_with_what_is_not_saved():
    """A backward kernel that is fast and needs much room: the chain makes room for it by saving less."""
    problem = random_problem(4, Kernels.FIT)
    graph = problem.graph
    slow = [
        KernelCost("slow", 0, 1e-3 if graph.ops[i].phase is Phase.BACKWARD else 1e-6) for i in range(len(graph.ops))
    ]
    room = max(t.nbytes for t in graph.tensors if t.role is Role.ACTIVATION)
    fast = KernelCost("fast", room, 1e-4)
    rows = [(k, fast) if k.seconds == 1e-3 else (k,) for k in slow]
    problem = dataclasses.replace(problem, costs=CostTable(tuple(rows)))
    choices = [choose_least_workspace(problem.costs, Kernels.FIT)]
    choices.append(choose_fast_gradients(graph, problem.costs, choices[0]))
    plain, both = (model_chain(graph, problem.costs, choices[:n]).chain for n in (1, 2))
    budget = simulate_chain(plain, keep_everything(plain))[0]
    times = [solve(chain, budget) for chain in (plain, both)]
    assert times[0] is not None and times[1] is not None
    assert times[1].seconds < 0.5 * times[0].seconds
    model = model_chain(graph, problem.costs, choices)
    choose = choose_kernels(model, times[1].steps)
    assert any(choose(op.id)[0] == 1 for op in graph.ops)
    assert all(choose(op.id) == choices[0](op.id) for op in graph.ops if op.phase is Phase.FORWARD)
    assert int(
        find_lifetimes(graph, expand(graph, model, times[1].steps), choose).live_bytes().max()
    ) <= budget + count_background_bytes(graph)
