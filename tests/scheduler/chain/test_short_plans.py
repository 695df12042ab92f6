"""Plans of little memory with few steps: in how many steps, in how much memory, and that they are plans."""

import random
import tracemalloc

import pytest

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.profile import estimate
from bathyal.layers import BatchNorm2d, Conv2d, Flatten, GlobalAvgPool2d, Linear, ReLU, Sequential
from bathyal.scheduler.chain import short_plans
from bathyal.scheduler.chain.least_memory import LeastMemorySolver, find_minimum_budget, find_minimum_plan
from bathyal.scheduler.chain.short_plans import (
    STEPS_PER_BLOCK,
    ShortPlanSolver,
    count_most_steps,
    find_short_minimum_plan,
    solve_least_memory,
)
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.types import Chain, ChainBlock, ChainOption
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import StrategyPlanner
from tests.support.lowered_graphs import lower_step
from tests.support.random_chains import budgets_of, random_chain

INPUT = 4096


def uniform_chain(count: int) -> Chain:
    """As many equal blocks, as those of convolution, batch norm and ReLU, and a small loss."""
    option = ChainOption(3 * INPUT, 1.0, 2.0, 0, 0)
    block = ChainBlock(INPUT, INPUT, 1.0, INPUT, (option,))
    loss = ChainBlock(INPUT, INPUT, 0.0, 0, (ChainOption(0, 0.0, 0.1, 0, 64),))
    return Chain((*[block] * count, loss))


@pytest.mark.parametrize("seed", range(40))
def test_steps_are_counted_as_they_are_written(seed):
    chain = random_chain(random.Random(seed), 12, runs=seed % 2 == 0)
    solver = LeastMemorySolver(chain)
    for budget in budgets_of(chain, 4):
        assert solver.count_steps(budget) == len(solver.write(budget))


def test_half_a_million_steps_are_counted_without_being_written():
    chain = uniform_chain(1000)
    solver = LeastMemorySolver(chain)
    assert solver.count_steps(solver.least_bytes) == 1000 * 999 // 2 + 2 * 1000 + 1


def test_a_chain_of_few_blocks_has_its_very_minimum():
    chain = uniform_chain(130)
    assert find_short_minimum_plan(chain) == find_minimum_plan(chain)
    assert ShortPlanSolver(chain).least_bytes == find_minimum_budget(chain)


@pytest.mark.parametrize("count", [500, 1000])
def test_a_long_uniform_chain_takes_few_inputs_more_and_a_plan_linear_in_its_length(count):
    chain = uniform_chain(count)
    steps = find_short_minimum_plan(chain)
    assert len(steps) <= count_most_steps(chain)
    peak, _ = simulate_chain(chain, steps)
    least = ShortPlanSolver(chain).least_bytes
    assert peak <= least
    assert least <= find_minimum_budget(chain) + count.bit_length() * INPUT


def test_the_memory_of_planning_is_linear_in_the_length(monkeypatch):
    monkeypatch.setattr(short_plans, "FREE_STEPS", 100)
    peaks = []
    for count in (200, 400):
        chain = uniform_chain(count)
        tracemalloc.start()
        steps = find_short_minimum_plan(chain)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(steps) <= STEPS_PER_BLOCK * (count + 1)
    assert peaks[1] < 2.5 * peaks[0]
    assert peaks[1] < 8192 * 400


def test_every_budget_from_the_least_up_has_a_short_plan_and_none_below(monkeypatch):
    monkeypatch.setattr(short_plans, "FREE_STEPS", 100)
    for count in (20, 60):
        chain = uniform_chain(count)
        least = ShortPlanSolver(chain).least_bytes
        assert least > find_minimum_budget(chain) or count_most_steps(chain) >= count * count // 2
        for more in range(0, 12 * INPUT, INPUT // 2):
            solution = solve_least_memory(chain, least + more)
            assert solution is not None
            peak, seconds = simulate_chain(chain, solution.steps)
            assert peak <= least + more
            assert seconds == solution.seconds
            assert len(solution.steps) <= count_most_steps(chain)
        assert solve_least_memory(chain, find_minimum_budget(chain) - 1) is None


def test_the_least_plan_of_a_deep_network_is_short(monkeypatch):
    monkeypatch.setattr(short_plans, "FREE_STEPS", 100)
    count = 60
    layers = [layer for _ in range(count) for layer in (Conv2d(4, 3, padding=1, bias=False), BatchNorm2d(), ReLU())]
    backend = NullBackend()
    graph = lower_step(Sequential(*layers, GlobalAvgPool2d(), Flatten(), Linear(7)), (2, 3, 8, 8), backend)
    planner = StrategyPlanner(Problem(graph, estimate(graph, backend), Kernels.FIXED, lay_out_state(graph)), "chain")
    plan = planner.plan(planner.least_bytes)
    assert plan.peak_bytes == planner.least_bytes
    assert plan.recomputed_ops <= 3 * STEPS_PER_BLOCK * (count + 2) < 3 * count * count // 2
