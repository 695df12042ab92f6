"""Which programs are run for a chain and a budget, from its length alone or within a number of seconds.

Without a limit: the exact program where it is quick, beside or instead of it that of groups, and what manages with less
memory only where they find nothing, last `minimum_plan`. Within `max_seconds`: `minimum_plan`, and then of at most twice,
groups and exact the programs of least work first, as long as their work adds up to no more; the fastest plan is
taken. Either way no recomputation where that fits.

Work counts table cells times what is looked at for each, at `WORK_PER_SECOND`: no clock, the same on every machine. What
is run within fewer seconds is run within more too, so more seconds never give a slower plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from ...memory.errors import BudgetError, ConfigError
from .at_most_twice import at_most_twice_work, solve_at_most_twice
from .dp import TabledChain
from .groups import expand_groups, group_chain, group_count
from .least_memory import minimum_plan
from .prune import PrunedChain, prune_options
from .states import Rounding, index_states, keep_everything
from .types import Chain, ChainSolution, check_chain, simulate_chain

_log = logging.getLogger(__name__)
WORK_PER_SECOND = 500_000_000
"""Table cells times splits or options; measured on one core of a server of 2023."""
_QUICK = 3 * WORK_PER_SECOND
_PATIENT = 20 * WORK_PER_SECOND
_SLOTS = (500, 1000, 2000)
_TWICE_BLOCKS = 2000
_GROUPS = (2, 4, 8, 16, 32, 64, 128)
_FEW_GROUPS = 100
_TIGHT = 32


class ChainSolver(Protocol):
    """Answers for a budget, and mostly for smaller ones too."""

    def solution(self, budget_bytes: int) -> ChainSolution | None:
        """The fastest plan that the program finds."""
        ...


def default_slots(chain: Chain) -> int:
    """Slots with which the exact program takes about three seconds at most: 2000, 1000 or 500; 0 if even 500 are too many.

    The rule counts table cells times splits, so it is the same on every machine.
    """
    candidates = index_states(chain).candidates()
    return next((slots for slots in reversed(_SLOTS) if candidates * slots <= _QUICK), 0)


class TabledGroups:
    """The exact program of a chain where `size` neighbours of a run are taken as one."""

    def __init__(self, chain: Chain, budget_bytes: int, size: int, slots: int | None = None) -> None:
        self._chain, self._grouped = chain, group_chain(chain, size)
        slots = slots or default_slots(self._grouped.chain)
        self._table = TabledChain(self._grouped.chain, budget_bytes, slots) if slots else None

    def solution(self, budget_bytes: int) -> ChainSolution | None:
        """The fastest plan within at most the table's budget; None if none fits, or still too long a chain."""
        solution = self._table.solution(budget_bytes) if self._table else None
        if solution is None:
            return None
        steps = expand_groups(self._chain, self._grouped, solution.steps)
        return ChainSolution(steps, simulate_chain(self._chain, steps)[1], solution.unit_bytes)


class Portfolio:
    """Plans of one chain within a budget and, from the same tables, within smaller ones; of a long chain with priced options.

    Args:
        chain: its numbers make sense.
        budget_bytes: the largest that will be asked for, the chain's input included.
    """

    def __init__(self, chain: Chain, budget_bytes: int) -> None:
        self._whole, self._budget_bytes = chain, budget_bytes
        self._priced = None if default_slots(chain) == 2000 else prune_options(chain)
        self._chain = chain if self._priced is None else self._priced.chain
        self._slots = default_slots(self._chain)
        self._tables: list[ChainSolver] = []
        if budget_bytes < 1:
            return
        if self._slots:
            self._tables.append(TabledChain(self._chain, budget_bytes, self._slots))
        if self._slots < 2000:
            # Where memory holds few blocks, groups of many are too coarse.
            most = sum(max(o.saved_bytes for o in block.options) for block in self._chain.blocks)
            few = _FEW_GROUPS if budget_bytes * _TIGHT >= most else 2.5 * _FEW_GROUPS
            size = next((n for n in _GROUPS if group_count(self._chain, n) <= few), _GROUPS[-1])
            self._tables.append(TabledGroups(self._chain, budget_bytes, size))

    def solution(self, budget_bytes: int) -> ChainSolution | None:
        """The best plan found; None means a budget below `minimum_budget`."""
        found = self.from_tables(budget_bytes)
        if found is None and budget_bytes < self._budget_bytes:
            return Portfolio(self._whole, budget_bytes).solution(budget_bytes)
        return found or self._original(self._with_less(budget_bytes))

    def from_tables(self, budget_bytes: int) -> ChainSolution | None:
        """The best plan of the tables alone; None where their units are too coarse."""
        return self._original(_fastest(table.solution(budget_bytes) for table in self._tables))

    def _with_less(self, budget_bytes: int) -> ChainSolution | None:
        """What manages with less memory than the tables: the first that finds a plan."""
        chain, count = self._chain, len(self._chain.blocks)
        if budget_bytes < 1:
            return None
        found = solve_at_most_twice(chain, budget_bytes) if count <= _TWICE_BLOCKS else None
        for size in reversed(_GROUPS):
            if found is None and group_count(chain, size) < count:
                found = TabledGroups(chain, budget_bytes, size).solution(budget_bytes)
        if found is None and not self._slots and index_states(chain).candidates() * _SLOTS[0] <= _PATIENT:
            found = TabledChain(chain, budget_bytes, _SLOTS[0]).solution(budget_bytes)
        return found or _least(chain, budget_bytes)

    def _original(self, solution: ChainSolution | None) -> ChainSolution | None:
        if solution is None or self._priced is None:
            return solution
        return replace(solution, steps=self._priced.original(solution.steps))


def solve_within(chain: Chain, budget_bytes: int, max_seconds: float) -> ChainSolution | None:
    """The best plan of the programs whose work fits `max_seconds`; None means a budget below `minimum_budget`."""
    whole = keep_everything(chain)
    peak, seconds = simulate_chain(chain, whole)
    if peak <= budget_bytes:
        return ChainSolution(whole, seconds, 1)
    found = [_least(chain, budget_bytes)]
    if found == [None]:
        return None
    left = max_seconds * WORK_PER_SECOND
    for work, program in _list_solvers(chain, budget_bytes):
        left -= work
        if left < 0:
            break
        found.append(program())
    return _fastest(found)


def _list_solvers(chain: Chain, budget_bytes: int) -> list[tuple[int, Callable[[], ChainSolution | None]]]:
    """Programs with their work, the least first; those of groups on the options that are worth their price."""
    priced, count = prune_options(chain), len(chain.blocks)
    found = [(at_most_twice_work(count), partial(solve_at_most_twice, chain, budget_bytes))]
    found += [(_work(chain, slots), partial(_tabled, chain, budget_bytes, slots)) for slots in _SLOTS]
    for size in _GROUPS:
        grouped = group_chain(priced.chain, size).chain
        slots = default_slots(grouped)
        if slots and len(grouped.blocks) < count:
            found.append((_work(grouped, slots), partial(_grouped, chain, priced, budget_bytes, size)))
    return sorted(found, key=lambda rung: rung[0])


def _work(chain: Chain, slots: int) -> int:
    rows = index_states(chain)
    return slots * (rows.candidates() + sum(len(chain.blocks[i].options) for i, _ in rows.order()))


def _tabled(chain: Chain, budget_bytes: int, slots: int) -> ChainSolution | None:
    return TabledChain(chain, budget_bytes, slots).solution(budget_bytes)


def _grouped(chain: Chain, priced: PrunedChain, budget_bytes: int, size: int) -> ChainSolution | None:
    found = TabledGroups(priced.chain, budget_bytes, size).solution(budget_bytes)
    return found and replace(found, steps=priced.original(found.steps))


def _least(chain: Chain, budget_bytes: int) -> ChainSolution | None:
    try:
        steps = minimum_plan(chain, budget_bytes)
    except BudgetError as error:
        _log.debug("chain of %d blocks: %s", len(chain.blocks), error)
        return None
    return ChainSolution(steps, simulate_chain(chain, steps)[1], 1)


def _fastest(found: Iterable[ChainSolution | None]) -> ChainSolution | None:
    """Of equals the first."""
    return min((s for s in found if s is not None), key=lambda s: s.seconds, default=None)


def solve(
    chain: Chain,
    budget_bytes: int,
    slots: int | None = None,
    *,
    rounding: Rounding = "up",
    collapse_runs: bool = True,
    max_seconds: float | None = None,
) -> ChainSolution | None:
    """The fastest plan found within a budget, which counts the chain's input too; None if there is none.

    With `slots` the exact program at that many units a budget; None may then be the rounding's fault. Without, what
    `chain_ladder` chooses by the chain's length, or within `max_seconds` of planning, which are counted, not timed: more
    never give a slower plan. None then means a budget below `minimum_budget`.

    `rounding="down"` gives a certified lower bound for memory-persistent plans instead of a plan, by default with
    `default_slots` or else 100; None then means that no such plan fits. `collapse_runs=False` is the same program with
    one row for each interval.

    Raises:
        ConfigError: numbers that make no sense, no slots, fewer than no seconds.
    """
    check_chain(chain)
    if slots is None and rounding == "down":
        slots = default_slots(chain) or 100
    if slots is None:
        if max_seconds is None:
            return Portfolio(chain, budget_bytes).solution(budget_bytes)
        if not max_seconds >= 0:
            raise ConfigError("chain planner", "at least 0 seconds", str(max_seconds))
        return solve_within(chain, budget_bytes, max_seconds)
    if slots < 1:
        raise ConfigError("chain planner", "at least one slot", str(slots))
    if budget_bytes < 1:
        return None
    return TabledChain(chain, budget_bytes, slots, rounding=rounding, collapse_runs=collapse_runs).solution(
        budget_bytes
    )


def solve_grouped(chain: Chain, budget_bytes: int, size: int, slots: int | None = None) -> ChainSolution | None:
    """The fastest plan where `size` neighbours of a run are taken as one; None if none fits, or still too long a chain.

    Raises:
        ConfigError: numbers that make no sense, no slots.
    """
    check_chain(chain)
    return TabledGroups(chain, budget_bytes, size, slots).solution(budget_bytes) if budget_bytes > 0 else None
