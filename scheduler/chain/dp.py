"""The fastest memory-persistent plan of a chain within a budget, by dynamic programming over intervals and bytes.

OPT(i,l,m) is the least time from the gradient of block l's output to that of block i's input, x_i resident (not counted
in m), the waiting gradient δ_{l+1} counted in m; the answer is OPT(0, L, budget - a_0). With sizes a, d, ā as in
`types` (a = x, d = δ, ā = saved), P what a run of plain forward passes needs and A what a saving block needs:

    P(i,j,l) = d_{l+1} + max( a_{i+1} + plain_i, max_{i<q<j} a_q + a_{q+1} + plain_q )
    A(i,l,k) = max( d_{l+1} + ā_k + forward_k,  d_i + d_{i+1} + ā_k + backward_k )
    split at j (m >= P):    Σ_{i<=q<j} plain seconds + OPT(j, l, m - a_j) + OPT(i, j-1, m)
    save with k (m >= A):   forward + backward seconds + OPT(i+1, l, m - ā_k)

Bytes are counted in units, each size rounded up on its own, so a plan found keeps the budget; where all sizes share a
unit that gives few enough slots, nothing is rounded. Rounded down, the same recurrence gives a lower bound for all
memory-persistent plans (a plan that drops a stored tensor early can be faster; that problem is NP-hard).

The table holds the seconds above those of a step without recomputation, in float32; plans are replayed in float64. Not
checked: that the chain's numbers describe a network. Source: Herrmann, Beaumont et al., arXiv 1911.13214, theorem 1,
with the conditions on memory corrected (d_{l+1} beside every forward pass, d_{i+1} beside every backward pass).

Rows of the table are non-increasing in m, so a split is looked at on a window of slots only where its value at the
window's end beats what the window's start has: exact. Splits are searched again while a plan is written: there is no
table of choices.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .intervals import IntervalChoice, Save, Split, write_intervals
from .scaled import Ints, Rounding, ScaledChain, choose_unit_bytes, scale_chain
from .simulate import simulate_chain
from .states import StateIndex, index_states
from .step_writer import keep_everything
from .types import Chain, ChainSolution, ChainStep

logger = logging.getLogger(__name__)

WORK_PER_SECOND = 500_000_000
"""Table cells times splits or options that are looked at in a second; measured on one core of a server of 2023."""
SLOT_CHOICES = (500, 1000, 2000)
"""Into how many units the exact solver may divide a budget where nobody says it."""
MOST_SLOTS = max(SLOT_CHOICES)
_QUICK_WORK = 3 * WORK_PER_SECOND
_WINDOW = 64
"""Slots that are looked at together."""

_Float32s = npt.NDArray[np.float32]


def choose_slots(chain: Chain) -> int:
    """Choose the slots with which the exact solver takes three seconds at most; 0 where all choices are too many.

    The rule counts table cells times splits, so the choice is the same on every machine.
    """
    splits = index_states(chain).count_splits()
    return next((slots for slots in reversed(SLOT_CHOICES) if splits * slots <= _QUICK_WORK), 0)


class ExactSolver:
    """The exact solver of one chain for a budget; its table answers for all smaller budgets too, in the same units.

    The table is filled when the first budget is asked for that does not hold everything. `make_exact_solver` makes one.

    Args:
        chain: the chain to plan.
        budget_bytes: the largest budget that will be asked for, the chain's input included.
        unit_bytes: the unit of all sizes.
        rounding: "up" for plans, "down" for bounds.
        whole: the plan without recomputation.
        whole_peak_bytes: the peak of that plan.
    """

    def __init__(
        self,
        chain: Chain,
        budget_bytes: int,
        unit_bytes: int,
        rounding: Rounding,
        whole: ChainSolution,
        whole_peak_bytes: int,
    ) -> None:
        self._chain, self._budget_bytes = chain, budget_bytes
        self._unit_bytes, self._rounding = unit_bytes, rounding
        self._whole, self._whole_peak_bytes = whole, whole_peak_bytes
        self._table: Table | None = None

    def solve(self, budget_bytes: int) -> ChainSolution | None:
        """Find the fastest plan, or the bound, within at most the solver's budget; None where the units allow none."""
        chain, unit = self._chain, self._unit_bytes
        if self._whole_peak_bytes <= budget_bytes:
            return self._whole
        table = self._find_table()
        if table is None:
            logger.debug("chain of %d blocks: the input alone exceeds %d bytes", len(chain.blocks), budget_bytes)
            return None
        room = budget_bytes // unit - int(table.scaled.inputs[0])
        extra = table.at(0, len(chain.blocks) - 1, room) if room >= 0 else math.inf
        if not math.isfinite(extra):
            logger.debug("chain of %d blocks: no plan in %d units of %d bytes", len(chain.blocks), room, unit)
            return None
        if self._rounding == "down":
            # A value is a tree of sums of at most L + 2 levels with few roundings each: below the true one by no more.
            slack = 1.0 - (len(chain.blocks) + 2) * 2.0**-22
            return ChainSolution((), table.scaled.least_seconds + max(slack, 0.0) * extra, unit)
        steps = write_plan(table, chain, room)
        return ChainSolution(steps, simulate_chain(chain, steps)[1], unit)

    def _find_table(self) -> Table | None:
        """The table of the solver's budget, filled at the first call; None where the budget is below the input."""
        if self._table is None:
            scaled = scale_chain(self._chain, self._unit_bytes, self._rounding)
            room = self._budget_bytes // self._unit_bytes - int(scaled.inputs[0])
            if room >= 0:
                self._table = fill_table(scaled, index_states(self._chain), room)
        return self._table


def make_exact_solver(chain: Chain, budget_bytes: int, slots: int, *, rounding: Rounding = "up") -> ExactSolver:
    """Make the exact solver of a chain for a budget, its table still empty.

    Args:
        chain: a chain whose numbers make sense.
        budget_bytes: the largest budget that will be asked for, the chain's input included; at least 1.
        slots: the number of units of that budget, at least 1.
        rounding: "up" gives plans, "down" bounds.
    """
    steps = keep_everything(chain)
    peak, seconds = simulate_chain(chain, steps)
    whole = ChainSolution(steps if rounding == "up" else (), seconds, 1)
    unit = choose_unit_bytes(chain, budget_bytes, slots)
    return ExactSolver(chain, budget_bytes, unit, rounding, whole, peak)


@dataclass(frozen=True, slots=True)
class Table:
    """The extra seconds of every row for m = 0, 1, …, up to a room; +inf where nothing fits.

    Attributes:
        scaled: the chain in units.
        states: the rows of the table.
        width: the slots of a row; those beyond the room fill the last window.
        flat: ((rows + 1) · width,) the rows one after the other. The first `width` numbers, +inf, are no row: they are
            what row 0 reads at m < a_j.
    """

    scaled: ScaledChain
    states: StateIndex
    width: int
    flat: _Float32s

    def at(self, i: int, last: int, m: int) -> float:
        """The extra seconds of the state (i, last) with m units."""
        return float(self.flat[(self.states.row(i, last) + 1) * self.width + m])


def fill_table(scaled: ScaledChain, states: StateIndex, room: int) -> Table:
    """Compute the table for all m from 0 to `room`."""
    width = (room // _WINDOW + 1) * _WINDOW
    flat: _Float32s = np.full((states.row_count + 1) * width, np.inf, np.float32)
    splitter = _Splitter(flat, width)
    rows = flat.reshape(-1, width)[1:]
    current = -1
    for i, last in states.walk():
        if i != current:
            current, starting, run_units = i, (states.rows_from(i) + 1) * width, scaled.run_units(i)
            run_seconds = (scaled.seconds_before[i + 1 : -1] - scaled.seconds_before[i]).astype(np.float32)
        out = rows[states.row(i, last)]
        waiting = int(scaled.gradients[last + 1])
        above = rows[states.row(i + 1, last)] if last > i else None
        for option in scaled.options[i]:
            need, extra = option.units_needed(waiting), np.float32(option.extra_seconds)
            if need < width and above is None:
                np.minimum(out[need:], extra, out=out[need:])
            elif need < width and above is not None:
                rest = above[need - option.saved : width - option.saved]
                np.minimum(out[need:], rest + extra, out=out[need:])
        if last > i:
            needs = run_units[: last - i] + waiting
            count = int(needs.searchsorted(width))
            if count and out[needs[0]] > run_seconds[0]:
                right = (states.rows_to(i, last)[:count] + 1) * width - scaled.inputs[i + 1 : i + 1 + count]
                splits = _Splits(needs[:count], run_seconds[:count], right, starting[:count])
                splitter.lower_row(out, splits)
    return Table(scaled, states, width, flat)


@dataclass(frozen=True, slots=True)
class _Splits:
    """The splits of a state in order of j; each gives run seconds + flat[right + m] + flat[left + m] for m >= its need.

    Attributes:
        needs: (splits,) units from which on the split is possible.
        run_seconds: (splits,) seconds of the run from x_i to x_j.
        right: (splits,) start of the row of (j, l), less a_j.
        left: (splits,) start of the row of (i, j-1).
    """

    needs: Ints
    run_seconds: _Float32s
    right: Ints
    left: Ints


class _Splitter:
    """Lowers rows of a table by their splits, one window of slots at a time.

    Args:
        flat: the table.
        width: the slots of a row.
    """

    def __init__(self, flat: _Float32s, width: int) -> None:
        self._flat, self._width = flat, width
        # Every stretch of one window's length, as rows of a view: gathering rows is a copy of whole cache lines.
        self._windows = np.lib.stride_tricks.sliding_window_view(flat, _WINDOW)

    def lower_row(self, out: _Float32s, splits: _Splits) -> None:
        """Lower a row to its best split in every slot."""
        flat, needs, run_seconds = self._flat, splits.needs, splits.run_seconds
        begin = int(needs[0]) // _WINDOW
        starts = np.arange(begin * _WINDOW, self._width, _WINDOW)
        now = out[starts]
        starts = starts[now > run_seconds[0]]  # rows are non-increasing: a prefix
        if not len(starts):
            return
        now = out[starts]
        ends = starts + (_WINDOW - 1)
        bound = flat[splits.right[:, None] + ends]
        bound += flat[splits.left[:, None] + ends]
        bound += run_seconds[:, None]
        if needs[-1] > ends[0]:
            bound[needs[:, None] > ends] = np.inf
        best = bound.argmin(axis=0)
        columns = np.arange(len(starts))
        wins = bound[best, columns] < now
        if not wins.any():
            return
        self._lower_windows(out, splits, starts[columns[wins]], best[wins])
        bound[best, columns] = np.inf
        column, split = np.nonzero((bound < out[starts]).T)
        if len(column):
            self._lower_windows(out, splits, starts[column], split)

    def _lower_windows(self, out: _Float32s, splits: _Splits, begin: Ints, split: Ints) -> None:
        """Evaluate pairs of a window, named by its first slot, and a split; windows ascending."""
        # Where m < a_j the row before the right one is read; those slots are below `needs` and are masked.
        values = self._windows[splits.right[split] + begin]
        values += self._windows[splits.left[split] + begin]
        values += splits.run_seconds[split][:, None]
        needs = splits.needs[split]
        partial = np.flatnonzero(needs > begin)
        if len(partial):
            below = np.arange(_WINDOW) < (needs[partial] - begin[partial])[:, None]
            values[partial] = np.where(below, np.float32(np.inf), values[partial])
        edges = np.flatnonzero(np.diff(begin, prepend=-1))
        lowered = np.minimum.reduceat(values, edges, axis=0)
        view = out.reshape(-1, _WINDOW)
        windows = begin[edges] // _WINDOW
        view[windows] = np.minimum(view[windows], lowered)


def write_plan(table: Table, chain: Chain, room: int) -> tuple[ChainStep, ...]:
    """Write the plan of the whole chain for m = `room`, where the table must be finite."""
    return write_intervals(chain, room, lambda i, last, m: _choose_fastest(table, i, last, m))


def _choose_fastest(table: Table, i: int, last: int, m: int) -> IntervalChoice:
    """Choose the option or the split from which the table's value for the state (i, last) with m units comes."""
    scaled, states, width = table.scaled, table.states, table.width
    waiting = int(scaled.gradients[last + 1])
    best, chosen, rest, split = math.inf, -1, 0, -1
    for option in scaled.options[i]:
        if option.units_needed(waiting) <= m:
            extra = option.extra_seconds + (table.at(i + 1, last, m - option.saved) if last > i else 0.0)
            if extra < best:
                best, chosen, rest = extra, option.index, m - option.saved
    needs = scaled.run_units(i)[: last - i] + waiting
    count = int(needs.searchsorted(m, side="right"))
    if count:
        inputs = scaled.inputs[i + 1 : i + 1 + count]
        extras = scaled.seconds_before[i + 1 : i + 1 + count] - scaled.seconds_before[i]
        extras = extras + table.flat[(states.rows_to(i, last)[:count] + 1) * width + m - inputs]
        extras += table.flat[(states.rows_from(i)[:count] + 1) * width + m]
        if extras.min() < best:
            split = i + 1 + int(extras.argmin())
    return Save(chosen, rest) if split < 0 else Split(split, m - int(scaled.inputs[split]))
