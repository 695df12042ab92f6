"""Plans for many budgets: each replayed, none slower than one in less memory, the largest as good as by itself."""

import random

import pytest

from bathyal.memory.errors import ConfigError
from bathyal.scheduler.chain.least_memory import minimum_budget
from bathyal.scheduler.chain.portfolio import solve
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.step_writer import keep_everything
from bathyal.scheduler.chain.sweep import sweep
from bathyal.scheduler.chain.types import Chain
from tests.support.random_chains import budgets_of, random_chain


@pytest.mark.parametrize("seed", range(4))
def test_every_plan_keeps_its_budget_and_none_is_slower_than_one_in_less(seed):
    rng = random.Random(seed)
    chain = random_chain(rng, rng.randint(1, 25), runs=seed % 2 == 1)
    budgets = budgets_of(chain, 6)
    found = sweep(chain, budgets)
    assert sweep(chain, list(reversed(budgets))) == list(reversed(found))
    for budget, solution in zip(budgets, found, strict=True):
        peak, seconds = simulate_chain(chain, solution.steps)
        assert peak <= budget
        assert seconds == solution.seconds
    times = [solution.seconds for solution in found]
    assert times == sorted(times, reverse=True)
    assert found[-1].seconds == simulate_chain(chain, keep_everything(chain))[1]
    below = sweep(chain, budgets[:-1])
    assert below[-1].seconds <= solve(chain, budgets[-2]).seconds


def test_the_largest_budget_alone_is_what_solve_finds():
    chain = random_chain(random.Random(1), 15)
    for budget in budgets_of(chain, 5)[1:-1]:
        assert sweep(chain, [budget]) == [solve(chain, budget)]


def test_a_budget_below_the_least_has_no_plan():
    chain = random_chain(random.Random(2), 12)
    least = minimum_budget(chain)
    assert sweep(chain, [least - 1, 0, -5]) == [None, None, None]
    assert sweep(chain, [least])[0] is not None
    assert sweep(chain, []) == []


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError):
        sweep(Chain(()), [5])
