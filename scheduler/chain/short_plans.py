"""Plans of little memory with a bounded number of steps, for chains of any length.

In its very minimum a chain of n equal blocks runs n²/2 forward passes. Nobody would wait for them, and a plan of so
many steps takes gigabytes to write down for thousands of blocks. A few stored inputs more, about log n of them, need a
few reruns of each block instead. So a plan has at most `STEPS_PER_BLOCK` steps for each block here, or `FREE_STEPS` in
all where that is more. The least memory of such plans is the minimum of the chain itself where the plan of that is
short enough, as it is for networks whose blocks get smaller, and for all chains of up to 140 blocks.

Otherwise it is found by counting: the steps of a plan are counted for more and more bytes and then for bytes between,
until a `PRECISION`-th of the largest input is all that is left to gain. The plans are those of
`least_memory.LeastMemorySolver`, each the fastest that it finds, not the shortest; so a still smaller one may exist.

Source: ours; that log n checkpoints need log n reruns is of Griewank and Walther's revolve (2000).
"""

from __future__ import annotations

import logging
from functools import cached_property

from .least_memory import LeastMemorySolver
from .simulate import simulate_chain
from .types import Chain, ChainSolution, ChainStep, check_chain

logger = logging.getLogger(__name__)

STEPS_PER_BLOCK = 8
"""Most steps for each block: it saves once, runs backward once, and runs forward without saving six times."""
FREE_STEPS = 10_000
"""A plan of no more steps than these is never too long."""
PRECISION = 16
"""The least memory is found up to this part of the largest input of a block."""


def count_most_steps(chain: Chain) -> int:
    """Count the most steps that a plan of the chain may have."""
    return max(STEPS_PER_BLOCK * len(chain.blocks), FREE_STEPS)


class ShortPlanSolver:
    """Plans one chain in little memory and a bounded number of steps.

    Args:
        chain: a chain whose numbers make sense.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain, self._solver = chain, LeastMemorySolver(chain)

    @cached_property
    def least_bytes(self) -> int:
        """The fewest bytes, the chain's input included, in which a plan of so few steps was found."""
        most = count_most_steps(self._chain)
        low = self._solver.least_bytes
        if self._solver.count_steps(low) <= most:
            return low
        largest = max(block.input_bytes for block in self._chain.blocks)
        more = max(largest, 1)
        while self._solver.count_steps(low + more) > most:
            low, more = low + more, 2 * more
        high = low + more
        while high - low > max(largest // PRECISION, 1):
            middle = (low + high) // 2
            if self._solver.count_steps(middle) <= most:
                high = middle
            else:
                low = middle
        return high

    def write(self, budget_bytes: int | None = None) -> tuple[ChainStep, ...] | None:
        """Write a plan within the budget, by default within `least_bytes`; None where no short one was found."""
        solver = self._solver
        if budget_bytes is None:
            return solver.write(self.least_bytes)
        if budget_bytes < solver.least_bytes:
            return None
        if solver.count_steps(budget_bytes) <= count_most_steps(self._chain):
            return solver.write(budget_bytes)
        # What is chosen for a few bytes more may have more steps; the plan of least memory fits all the same.
        return solver.write(self.least_bytes) if budget_bytes >= self.least_bytes else None


def find_short_minimum_plan(chain: Chain) -> tuple[ChainStep, ...]:
    """Write the plan of least memory that has few enough steps.

    Raises:
        ConfigError: numbers that make no sense.
    """
    check_chain(chain)
    steps = ShortPlanSolver(chain).write()
    assert steps is not None, "only within a budget there may be no plan"
    return steps


def solve_least_memory(chain: Chain, budget_bytes: int) -> ChainSolution | None:
    """Find a plan of few enough steps within a budget; None where the budget is below the least of such plans.

    Raises:
        ConfigError: numbers that make no sense.
    """
    check_chain(chain)
    steps = ShortPlanSolver(chain).write(budget_bytes)
    if steps is None:
        logger.debug("chain of %d blocks: no plan of few steps within %d bytes", len(chain.blocks), budget_bytes)
        return None
    return ChainSolution(steps, simulate_chain(chain, steps)[1], 1)


def drop_long(chain: Chain, solution: ChainSolution | None) -> ChainSolution | None:
    """Return the solution of another solver, or None where it has too many steps."""
    if solution is None or len(solution.steps) <= count_most_steps(chain):
        return solution
    logger.info("chain of %d blocks: a plan of %d steps is too long", len(chain.blocks), len(solution.steps))
    return None
