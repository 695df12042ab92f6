"""Which solvers are run for a chain and a budget, from the chain's length alone.

These are the exact solver where it is quick, and of longer chains the exact solver of groups, beside or instead of it.
Solvers that manage with less memory are run only where these find nothing, the last of them `solve_least_memory`. The
plan without recomputation is taken where it fits. Plans of more steps than `short_plans` allows are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from .at_most_twice import solve_at_most_twice
from .dp import MOST_SLOTS, SLOT_CHOICES, WORK_PER_SECOND, choose_slots, make_exact_solver
from .groups import GROUP_SIZES, count_groups, make_group_solver
from .prune import PrunedChain, prune_options
from .short_plans import drop_long, solve_least_memory
from .states import index_states
from .types import Chain, ChainSolution

_PATIENT_WORK = 20 * WORK_PER_SECOND
"""Work of the exact solver that is taken on where nothing else has found a plan."""
_MOST_BLOCKS_AT_MOST_TWICE = 2000
_MOST_GROUPS = 100
_MOST_GROUPS_IN_TIGHT_BUDGETS = 250
_TIGHT_SHARE = 32
"""A budget is tight if it is below what all blocks save at most, divided by this."""


class ChainSolver(Protocol):
    """Finds plans of one chain, for all budgets up to a largest one."""

    def solve(self, budget_bytes: int) -> ChainSolution | None:
        """Find the fastest plan that the solver knows within a budget up to the largest; None where it has none."""
        ...


class Portfolio:
    """The solvers that are run for one chain within a budget and, from the same tables, within smaller ones.

    `make_portfolio` chooses them.

    Args:
        chain: the chain to plan.
        pruned: the same chain with fewer options, of which plans are made; None where all options are kept.
        budget_bytes: the largest budget that will be asked for, the chain's input included.
        solvers: those with tables, made for that budget.
    """

    def __init__(
        self, chain: Chain, pruned: PrunedChain | None, budget_bytes: int, solvers: Sequence[ChainSolver]
    ) -> None:
        self._chain, self._pruned, self._budget_bytes = chain, pruned, budget_bytes
        self._solvers = tuple(solvers)

    def solve(self, budget_bytes: int) -> ChainSolution | None:
        """Find the best plan of all solvers; None means a budget below the least of `short_plans`.

        A smaller budget than the largest is first looked up in the tables of the largest, and where their units are too
        coarse for it, planned by a portfolio of its own.
        """
        chain = self._chain
        found = choose_fastest(drop_long(chain, solver.solve(budget_bytes)) for solver in self._solvers)
        if found is None and budget_bytes < self._budget_bytes:
            return make_portfolio(chain, budget_bytes).solve(budget_bytes)
        if found is None:
            found = _solve_with_less(chain if self._pruned is None else self._pruned.chain, budget_bytes)
        if found is None or self._pruned is None:
            return found
        return replace(found, steps=self._pruned.restore_options(found.steps))


def make_portfolio(chain: Chain, budget_bytes: int) -> Portfolio:
    """Choose the solvers for a chain by its length; a long chain is planned with fewer options.

    No table is filled yet.

    Args:
        chain: a chain whose numbers make sense.
        budget_bytes: the largest budget that will be asked for, the chain's input included.
    """
    pruned = None if choose_slots(chain) == MOST_SLOTS else prune_options(chain)
    planned = chain if pruned is None else pruned.chain
    slots = choose_slots(planned)
    solvers: list[ChainSolver] = []
    if budget_bytes >= 1 and slots:
        solvers.append(make_exact_solver(planned, budget_bytes, slots))
    if budget_bytes >= 1 and slots < MOST_SLOTS:
        size = _choose_group_size(planned, budget_bytes)
        solvers.append(make_group_solver(planned, budget_bytes, size))
    return Portfolio(chain, pruned, budget_bytes, solvers)


def _choose_group_size(chain: Chain, budget_bytes: int) -> int:
    """Choose the smallest groups that are few enough; where memory holds few blocks, groups of many are too coarse."""
    saved = sum(max(o.saved_bytes for o in block.options) for block in chain.blocks)
    is_tight = budget_bytes * _TIGHT_SHARE < saved
    most = _MOST_GROUPS_IN_TIGHT_BUDGETS if is_tight else _MOST_GROUPS
    return next((size for size in GROUP_SIZES if count_groups(chain, size) <= most), GROUP_SIZES[-1])


def _solve_with_less(chain: Chain, budget_bytes: int) -> ChainSolution | None:
    """Run the solvers that manage with less memory than the tables; return the first plan that is found."""
    count = len(chain.blocks)
    if budget_bytes < 1:
        return None
    found = solve_at_most_twice(chain, budget_bytes) if count <= _MOST_BLOCKS_AT_MOST_TWICE else None
    for size in reversed(GROUP_SIZES):
        if found is None and count_groups(chain, size) < count:
            found = drop_long(chain, make_group_solver(chain, budget_bytes, size).solve(budget_bytes))
    fewest = min(SLOT_CHOICES)
    if found is None and not choose_slots(chain) and index_states(chain).count_splits() * fewest <= _PATIENT_WORK:
        found = drop_long(chain, make_exact_solver(chain, budget_bytes, fewest).solve(budget_bytes))
    return found or solve_least_memory(chain, budget_bytes)


def choose_fastest(found: Iterable[ChainSolution | None]) -> ChainSolution | None:
    """Choose the fastest plan; of equally fast ones the first."""
    return min((s for s in found if s is not None), key=lambda s: s.seconds, default=None)
