"""Which programs are run for a chain and a budget, from its length alone or within a number of seconds.

Without a limit, these are the exact program where it is quick, and of longer chains the exact program of groups, beside
or instead of it. Programs that manage with less memory are run only where these find nothing, the last of them
`minimum_plan`. Within `max_seconds`, `minimum_plan` is run first, and then those of at most twice, groups and exact
that have the least work, as long as their work adds up to no more; the fastest plan is taken. Either way the plan
without recomputation is taken where it fits.

Work counts table cells times what is looked at for each, at `dp.WORK_PER_SECOND`. No clock is read, so the plan is the
same on every machine. What is run within fewer seconds is run within more too, so more seconds never give a slower
plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from ...memory.errors import BudgetError, ConfigError
from .at_most_twice import count_work_at_most_twice, solve_at_most_twice
from .dp import MOST_SLOTS, SLOT_CHOICES, WORK_PER_SECOND, choose_slots, make_exact_solver
from .groups import count_groups, group_chain, make_group_solver
from .least_memory import minimum_plan
from .prune import PrunedChain, prune_options
from .scaled import Rounding
from .simulate import simulate_chain
from .states import index_states
from .step_writer import keep_everything
from .types import Chain, ChainSolution, check_chain

logger = logging.getLogger(__name__)

_PATIENT_WORK = 20 * WORK_PER_SECOND
"""Work of the exact program that is taken on where nothing else has found a plan."""
_SLOTS_FOR_BOUND = 100
"""Slots of a bound for chains that are too long for `choose_slots`."""
_MOST_BLOCKS_AT_MOST_TWICE = 2000
_GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128)
_MOST_GROUPS = 100
_MOST_GROUPS_IN_TIGHT_BUDGETS = 250
_TIGHT_SHARE = 32
"""A budget is tight if it is below what all blocks save at most, divided by this."""


class ChainSolver(Protocol):
    """A program for one chain and a largest budget."""

    def solve(self, budget_bytes: int) -> ChainSolution | None:
        """Find the fastest plan of the program within a budget that is at most the largest; None where it has none."""
        ...


class Portfolio:
    """The programs that are run for one chain within a budget and, from the same tables, within smaller ones.

    `make_portfolio` chooses them.

    Args:
        chain: the chain to plan.
        pruned: the same chain with fewer options, of which plans are made; None where all options are kept.
        budget_bytes: the largest budget that will be asked for, the chain's input included.
        solvers: programs with tables, made for that budget.
    """

    def __init__(
        self, chain: Chain, pruned: PrunedChain | None, budget_bytes: int, solvers: Sequence[ChainSolver]
    ) -> None:
        self._chain, self._pruned, self._budget_bytes = chain, pruned, budget_bytes
        self._solvers = tuple(solvers)

    def solve(self, budget_bytes: int) -> ChainSolution | None:
        """Find the best plan of all programs; None means a budget below `least_memory.minimum_budget`.

        A smaller budget than the largest is first looked up in the tables of the largest, and where their units are too
        coarse for it, planned by a portfolio of its own.
        """
        found = _choose_fastest(solver.solve(budget_bytes) for solver in self._solvers)
        if found is None and budget_bytes < self._budget_bytes:
            return make_portfolio(self._chain, budget_bytes).solve(budget_bytes)
        if found is None:
            found = _solve_with_less(self._chain if self._pruned is None else self._pruned.chain, budget_bytes)
        if found is None or self._pruned is None:
            return found
        return replace(found, steps=self._pruned.restore_options(found.steps))


def make_portfolio(chain: Chain, budget_bytes: int) -> Portfolio:
    """Choose the programs for a chain by its length; a long chain is planned with fewer options.

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
    return next((size for size in _GROUP_SIZES if count_groups(chain, size) <= most), _GROUP_SIZES[-1])


def _solve_with_less(chain: Chain, budget_bytes: int) -> ChainSolution | None:
    """Run what manages with less memory than the tables; the first plan found is taken."""
    count = len(chain.blocks)
    if budget_bytes < 1:
        return None
    found = solve_at_most_twice(chain, budget_bytes) if count <= _MOST_BLOCKS_AT_MOST_TWICE else None
    for size in reversed(_GROUP_SIZES):
        if found is None and count_groups(chain, size) < count:
            found = make_group_solver(chain, budget_bytes, size).solve(budget_bytes)
    fewest = min(SLOT_CHOICES)
    if found is None and not choose_slots(chain) and index_states(chain).count_splits() * fewest <= _PATIENT_WORK:
        found = make_exact_solver(chain, budget_bytes, fewest).solve(budget_bytes)
    return found or _solve_least_memory(chain, budget_bytes)


def solve_within(chain: Chain, budget_bytes: int, max_seconds: float) -> ChainSolution | None:
    """Find the best plan of the programs whose work fits `max_seconds`.

    None means a budget below `least_memory.minimum_budget`.
    """
    whole = keep_everything(chain)
    peak, seconds = simulate_chain(chain, whole)
    if peak <= budget_bytes:
        return ChainSolution(whole, seconds, 1)
    found = [_solve_least_memory(chain, budget_bytes)]
    if found == [None]:
        return None
    left = max_seconds * WORK_PER_SECOND
    for work, program in _list_programs(chain, budget_bytes):
        left -= work
        if left < 0:
            break
        found.append(program())
    return _choose_fastest(found)


def _list_programs(chain: Chain, budget_bytes: int) -> list[tuple[int, Callable[[], ChainSolution | None]]]:
    """List programs with their work, the least first; groups have the options of `prune_options` only."""
    pruned, count = prune_options(chain), len(chain.blocks)
    found = [(count_work_at_most_twice(count), partial(solve_at_most_twice, chain, budget_bytes))]
    found += [
        (_count_work(chain, slots), partial(_solve_exactly, chain, budget_bytes, slots)) for slots in SLOT_CHOICES
    ]
    for size in _GROUP_SIZES:
        grouped = group_chain(pruned.chain, size).chain
        slots = choose_slots(grouped)
        if slots and len(grouped.blocks) < count:
            found.append((_count_work(grouped, slots), partial(_solve_groups, pruned, budget_bytes, size)))
    return sorted(found, key=lambda program: program[0])


def _count_work(chain: Chain, slots: int) -> int:
    """Count the work of the exact program of a chain."""
    states = index_states(chain)
    return slots * (states.count_splits() + sum(len(chain.blocks[i].options) for i, _ in states.walk()))


def _solve_exactly(chain: Chain, budget_bytes: int, slots: int) -> ChainSolution | None:
    return make_exact_solver(chain, budget_bytes, slots).solve(budget_bytes)


def _solve_groups(pruned: PrunedChain, budget_bytes: int, size: int) -> ChainSolution | None:
    found = make_group_solver(pruned.chain, budget_bytes, size).solve(budget_bytes)
    return found and replace(found, steps=pruned.restore_options(found.steps))


def _solve_least_memory(chain: Chain, budget_bytes: int) -> ChainSolution | None:
    try:
        steps = minimum_plan(chain, budget_bytes)
    except BudgetError as error:
        logger.debug("chain of %d blocks: %s", len(chain.blocks), error)
        return None
    return ChainSolution(steps, simulate_chain(chain, steps)[1], 1)


def _choose_fastest(found: Iterable[ChainSolution | None]) -> ChainSolution | None:
    """Choose the fastest plan; of equally fast ones the first."""
    return min((s for s in found if s is not None), key=lambda s: s.seconds, default=None)


def solve(
    chain: Chain,
    budget_bytes: int,
    slots: int | None = None,
    *,
    rounding: Rounding = "up",
    max_seconds: float | None = None,
) -> ChainSolution | None:
    """Find the fastest plan within a budget, or a lower bound on the time of all memory-persistent plans.

    Args:
        chain: the chain to plan.
        budget_bytes: the budget, which counts the chain's input too.
        slots: where given, the exact program alone is run, with so many units a budget; it may find no plan only
            because sizes are rounded. By default the programs are chosen by the chain's length, or by `max_seconds`.
        rounding: "down" gives a certified lower bound instead of a plan, by default with `dp.choose_slots` or else 100
            slots.
        max_seconds: of planning, which are counted, not timed. More never give a slower plan.

    Returns:
        The plan or the bound. None for a bound means that no memory-persistent plan fits, and None without `slots` a
        budget below `least_memory.minimum_budget`.

    Raises:
        ConfigError: numbers that make no sense, no slots, fewer than no seconds.
    """
    check_chain(chain)
    if slots is None and rounding == "down":
        slots = choose_slots(chain) or _SLOTS_FOR_BOUND
    if slots is None:
        if max_seconds is None:
            return make_portfolio(chain, budget_bytes).solve(budget_bytes)
        if not max_seconds >= 0:
            raise ConfigError("chain planner", "at least 0 seconds", str(max_seconds))
        return solve_within(chain, budget_bytes, max_seconds)
    if slots < 1:
        raise ConfigError("chain planner", "at least one slot", str(slots))
    if budget_bytes < 1:
        return None
    return make_exact_solver(chain, budget_bytes, slots, rounding=rounding).solve(budget_bytes)
