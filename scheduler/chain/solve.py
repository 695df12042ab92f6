"""The planner of chains as functions: the fastest plan within a budget, or a lower bound on the time of all plans.

By default the solvers are those of `portfolio`. Within `max_seconds`, the solver of least memory is run first, and then
those of at most twice, groups and exact that have the least work, as long as their work adds up to no more; the fastest
plan is taken. Either way the plan without recomputation is taken where it fits.

Work counts table cells times what is looked at for each, at `dp.WORK_PER_SECOND`. No clock is read, so the plan is the
same on every machine. What is run within fewer seconds is run within more too, so more seconds never give a slower
plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...memory.errors import ConfigError
from .at_most_twice import count_work_at_most_twice, solve_at_most_twice
from .dp import SLOT_CHOICES, WORK_PER_SECOND, choose_slots, make_exact_solver
from .groups import GROUP_SIZES, group_chain, make_group_solver
from .portfolio import choose_fastest, make_portfolio
from .prune import PrunedChain, prune_options
from .scaled import Rounding
from .short_plans import solve_least_memory
from .simulate import simulate_chain
from .states import index_states
from .step_writer import keep_everything
from .types import Chain, ChainSolution, check_chain

_SLOTS_FOR_BOUND = 100
"""Slots of a bound for chains that are too long for `choose_slots`."""


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
        slots: where given, the exact solver alone is run, with so many units a budget; it may find no plan only
            because sizes are rounded. By default the solvers are chosen by the chain's length, or by `max_seconds`.
        rounding: "down" gives a certified lower bound instead of a plan, by default with `dp.choose_slots` or else 100
            slots.
        max_seconds: of planning, which are counted, not timed. More never give a slower plan.

    Returns:
        The plan or the bound. None for a bound means that no memory-persistent plan fits, and None without `slots` a
        budget below the least of `short_plans`.

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


def solve_within(chain: Chain, budget_bytes: int, max_seconds: float) -> ChainSolution | None:
    """Find the best plan of the solvers whose work fits `max_seconds`.

    None means a budget below the least of `short_plans`.
    """
    whole = keep_everything(chain)
    peak, seconds = simulate_chain(chain, whole)
    if peak <= budget_bytes:
        return ChainSolution(whole, seconds, 1)
    found = [solve_least_memory(chain, budget_bytes)]
    if found == [None]:
        return None
    left = max_seconds * WORK_PER_SECOND
    for work, solve_once in _list_solvers(chain, budget_bytes):
        left -= work
        if left < 0:
            break
        found.append(solve_once())
    return choose_fastest(found)


def _list_solvers(chain: Chain, budget_bytes: int) -> list[tuple[int, Callable[[], ChainSolution | None]]]:
    """List solvers with their work, the least first; groups have the options of `prune_options` only."""
    pruned, count = prune_options(chain), len(chain.blocks)
    found = [(count_work_at_most_twice(count), partial(solve_at_most_twice, chain, budget_bytes))]
    found += [
        (_count_work(chain, slots), partial(_solve_exactly, chain, budget_bytes, slots)) for slots in SLOT_CHOICES
    ]
    for size in GROUP_SIZES:
        grouped = group_chain(pruned.chain, size).chain
        slots = choose_slots(grouped)
        if slots and len(grouped.blocks) < count:
            found.append((_count_work(grouped, slots), partial(_solve_groups, pruned, budget_bytes, size)))
    return sorted(found, key=lambda solver: solver[0])


def _count_work(chain: Chain, slots: int) -> int:
    """Count the work of the exact solver of a chain."""
    states = index_states(chain)
    return slots * (states.count_splits() + sum(len(chain.blocks[i].options) for i, _ in states.walk()))


def _solve_exactly(chain: Chain, budget_bytes: int, slots: int) -> ChainSolution | None:
    return make_exact_solver(chain, budget_bytes, slots).solve(budget_bytes)


def _solve_groups(pruned: PrunedChain, budget_bytes: int, size: int) -> ChainSolution | None:
    found = make_group_solver(pruned.chain, budget_bytes, size).solve(budget_bytes)
    return found and replace(found, steps=pruned.restore_options(found.steps))
