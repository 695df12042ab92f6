"""Programs within seconds that are counted: the same on every machine, and more of them never give a slower plan."""

import random

import pytest

from bathyal.memory.errors import ConfigError
from bathyal.scheduler.chain.dp import choose_slots
from bathyal.scheduler.chain.least_memory import find_minimum_budget
from bathyal.scheduler.chain.portfolio import make_portfolio
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.solve import solve
from bathyal.scheduler.chain.step_writer import keep_everything
from tests.support.random_chains import budgets_of, random_chain

SECONDS = (0.0, 0.003, 0.01, 0.03)


@pytest.mark.parametrize("seed", range(3))
def test_more_seconds_never_give_a_slower_plan(seed):
    rng = random.Random(seed)
    chain = random_chain(rng, rng.randint(10, 30), runs=seed % 2 == 1)
    for budget in budgets_of(chain, 6)[:4:3]:
        found = [solve(chain, budget, max_seconds=seconds) for seconds in SECONDS]
        times = [solution.seconds for solution in found]
        assert times == sorted(times, reverse=True)
        assert found == [solve(chain, budget, max_seconds=seconds) for seconds in SECONDS]
        for solution in found:
            peak, seconds = simulate_chain(chain, solution.steps)
            assert peak <= budget
            assert seconds == solution.seconds


def test_enough_seconds_are_as_good_as_no_limit():
    chain = random_chain(random.Random(3), 15)
    assert choose_slots(chain) == 2000
    for budget in budgets_of(chain, 4)[1:3]:
        assert solve(chain, budget, max_seconds=10).seconds <= solve(chain, budget).seconds


def test_what_fits_whole_needs_no_seconds_and_what_does_not_fit_has_no_plan():
    chain = random_chain(random.Random(4), 20)
    peak, seconds = simulate_chain(chain, keep_everything(chain))
    assert solve(chain, peak, max_seconds=0).seconds == seconds
    assert solve(chain, find_minimum_budget(chain) - 1, max_seconds=1) is None


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_fewer_than_no_seconds_are_refused(seconds):
    with pytest.raises(ConfigError, match="at least 0 seconds"):
        solve(random_chain(random.Random(5), 5), 100, max_seconds=seconds)


def test_a_table_answers_for_smaller_budgets_too():
    chain = random_chain(random.Random(6), 20)
    budgets = budgets_of(chain, 6)
    portfolio = make_portfolio(chain, budgets[-2])
    for budget in budgets[:-1]:
        solution = portfolio.solve(budget)
        peak, seconds = simulate_chain(chain, solution.steps)
        assert peak <= budget
        assert seconds == solution.seconds
