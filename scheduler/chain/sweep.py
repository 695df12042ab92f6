"""Plans of one chain for many budgets, from the tables of one: a curve of time against memory for the price of a point.

The tables are those of the largest budget that does not fit everything, so for smaller budgets their units are coarser
than those that `portfolio.solve` would take; where they find nothing, `portfolio.solve` is asked. A plan within less
memory is a plan within more, so each budget has the fastest plan of all budgets up to its own.

Not checked: that the chain's numbers describe a network.
"""

from __future__ import annotations

from collections.abc import Sequence

from .portfolio import make_portfolio
from .simulate import simulate_chain
from .step_writer import keep_everything
from .types import Chain, ChainSolution, check_chain


def sweep(chain: Chain, budgets: Sequence[int]) -> list[ChainSolution | None]:
    """Plan a chain for each budget in bytes, which count the chain's input.

    No plan is slower than that of a smaller budget. That of the largest budget is what `portfolio.solve` finds for it.

    Returns:
        For each budget, in the given order, a plan; None where the budget is below `least_memory.minimum_budget`.

    Raises:
        ConfigError: numbers that make no sense.
    """
    check_chain(chain)
    whole = keep_everything(chain)
    peak, seconds = simulate_chain(chain, whole)
    portfolio = make_portfolio(chain, max((budget for budget in budgets if budget < peak), default=0))
    found: dict[int, ChainSolution | None] = {}
    best: ChainSolution | None = None
    for budget in sorted(set(budgets)):
        solution = ChainSolution(whole, seconds, 1) if budget >= peak else portfolio.solve(budget)
        if best is None or (solution is not None and solution.seconds < best.seconds):
            best = solution
        found[budget] = best
    return [found[budget] for budget in budgets]
