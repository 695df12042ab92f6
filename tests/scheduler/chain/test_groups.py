"""How many groups a chain has, and that budgets of every size get a plan near the exact one."""

import random

import pytest

from bathyal.scheduler.chain.dp import choose_slots
from bathyal.scheduler.chain.groups import count_groups, group_chain
from bathyal.scheduler.chain.least_memory import find_minimum_budget
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.solve import solve
from bathyal.scheduler.chain.types import Chain, ChainBlock, ChainOption

LOSS = ChainBlock(1, 1, 0.0, 0, (ChainOption(0, 0.0, 0.1, 0, 1),))


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_counted_without_making_them(seed):
    rng = random.Random(seed)
    kinds = [ChainBlock(n, n, 1.0, 0, (ChainOption(3, 1.0, 1.0, 0, 0),)) for n in (1, 2, 3)]
    blocks = [block for _ in range(rng.randint(1, 5)) for block in [rng.choice(kinds)] * rng.randint(1, 9)]
    # A loss that looks like a block of the run before it must not join a group.
    for loss in (LOSS, ChainBlock(2, 2, 1.0, 0, (ChainOption(3, 1.0, 1.0, 0, 0),))):
        chain = Chain((*blocks, loss))
        for size in (1, 2, 3, 4, 8):
            assert count_groups(chain, size) == len(group_chain(chain, size).chain.blocks)


def test_long_chains_at_all_budgets_come_near_the_exact_program():
    """Generous budgets are solved in large groups, tight ones in small: both within two per cent of 100 exact slots."""
    blocks = []
    for n in (4, 2, 1):
        options = (
            ChainOption(12 * n, 3.0, 6.0, n, n),
            ChainOption(10 * n, 3.0, 6.4, n, n),
            ChainOption(4 * n, 3.0, 9.0, n, 3 * n),
        )
        blocks += [ChainBlock(4 * n, 4 * n, 3.0, n, options)] * 64
    chain = Chain((*blocks, LOSS))
    assert choose_slots(chain) < 2000
    least, most = find_minimum_budget(chain), 64 * 12 * 7
    for share in (0.03, 0.25):
        budget = max(least, int(share * most))
        found, exact = solve(chain, budget), solve(chain, budget, 100)
        assert found is not None
        assert simulate_chain(chain, found.steps)[0] <= budget
        assert exact is None or found.seconds <= 1.02 * exact.seconds
