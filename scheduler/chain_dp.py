"""The fastest memory-persistent plan of a chain within a budget, by dynamic programming over intervals and bytes.

OPT(i,l,m) is the least time from the gradient of block l's output to that of block i's input, x_i resident (not counted
in m), the waiting gradient δ_{l+1} counted in m; the answer is OPT(0, L, budget - a_0). With sizes a, d, ā as in
`chain_steps`, P what a run of plain forwards needs and A what a saving block needs:

    P(i,j,l) = d_{l+1} + max( a_{i+1} + plain_i, max_{i<q<j} a_q + a_{q+1} + plain_q )
    A(i,l,k) = max( d_{l+1} + ā_k + forward_k,  d_i + d_{i+1} + ā_k + backward_k )
    split at j (m >= P):    Σ_{i<=q<j} plain seconds + OPT(j, l, m - a_j) + OPT(i, j-1, m)
    save with k (m >= A):   forward + backward seconds + OPT(i+1, l, m - ā_k)

Bytes are counted in units, each size rounded up on its own, so a plan found keeps the budget; where all sizes share a
unit that gives few enough slots, nothing is rounded. Rounded down, the same program is a lower bound for all
memory-persistent plans (a plan that drops a stored tensor early can be faster; that problem is NP-hard).

The table holds the seconds above those of a step without recomputation, in float32; plans are replayed in float64.
Rows are non-increasing in m, so a split is looked at on a window of slots only where its value at the window's end
beats what the window's start has: exact. Splits are searched again while the plan is written: no table of choices.

Not checked: that the chain's numbers describe a network. Source: Herrmann, Beaumont et al., arXiv 1911.13214, theorem 1,
with the conditions on memory corrected (d_{l+1} beside every forward, d_{i+1} beside every backward).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..memory.errors import BudgetError, ConfigError
from .chain_groups import expand_groups, group_chain, group_count
from .chain_memory import minimum_budget, minimum_plan
from .chain_prices import priced_chain
from .chain_rows import Ints, Numbers, Rounding, Rows, StepWriter, keep_everything, numbers, rows_of, unit_bytes
from .chain_steps import (
    Backward,
    Block,
    Chain,
    ChainSolution,
    ForwardCheckpoint,
    ForwardDiscard,
    ForwardSave,
    Option,
    Step,
    check_chain,
    simulate_chain,
)
from .chain_twice import solve_at_most_twice

__all__ = [
    "Backward",
    "Block",
    "Chain",
    "ChainSolution",
    "ForwardCheckpoint",
    "ForwardDiscard",
    "ForwardSave",
    "Option",
    "Step",
    "default_slots",
    "minimum_budget",
    "minimum_plan",
    "simulate_chain",
    "solve",
    "solve_at_most_twice",
    "solve_grouped",
]

_log = logging.getLogger(__name__)
_Float32s = npt.NDArray[np.float32]
_WINDOW = 64
_QUICK = 1_500_000_000  # table cells times splits: about three seconds
_PATIENT = 10_000_000_000
_TWICE_BLOCKS = 2000
_GROUPS = (2, 4, 8, 16, 32, 64, 128)
_FEW_GROUPS = 100
_TIGHT = 32


def default_slots(chain: Chain) -> int:
    """Slots with which the exact program takes about three seconds at most: 2000, 1000 or 500; 0 if even 500 are too many.

    The rule counts table cells times splits, so it is the same on every machine.
    """
    candidates = rows_of(chain).candidates()
    return next((slots for slots in (2000, 1000, 500) if candidates * slots <= _QUICK), 0)


def solve(
    chain: Chain,
    budget_bytes: int,
    slots: int | None = None,
    *,
    rounding: Rounding = "up",
    collapse_runs: bool = True,
) -> ChainSolution | None:
    """The fastest plan found within a budget, which counts the chain's input too; None if there is none.

    With `slots` the exact program at that many units a budget; None may then be the rounding's fault. Without, the
    exact program for short chains and `solve_grouped` for long ones, and where they find nothing what finds plans in
    less memory, last `minimum_plan`: None means a budget below `minimum_budget`.

    `rounding="down"` gives a certified lower bound for memory-persistent plans instead of a plan, by default with
    `default_slots` or else 100; None then means that no such plan fits. `collapse_runs=False` is the same program with
    one row for each interval.

    Raises:
        ConfigError: numbers that make no sense, no slots.
    """
    check_chain(chain)
    if slots is None and rounding == "down":
        slots = default_slots(chain) or 100
    if slots is None:
        return _solve_by_size(chain, budget_bytes)
    if slots < 1:
        raise ConfigError("chain planner", "at least one slot", str(slots))
    if budget_bytes < 1:
        return None
    whole = keep_everything(chain)
    peak, seconds = simulate_chain(chain, whole)
    if peak <= budget_bytes:
        return ChainSolution(whole if rounding == "up" else (), seconds, 1)
    unit = unit_bytes(chain, budget_bytes, slots)
    sizes, rows = numbers(chain, unit, rounding), rows_of(chain, collapse_runs)
    room = budget_bytes // unit - int(sizes.inputs[0])
    if room < 0:
        _log.debug("chain of %d blocks: the input alone exceeds %d bytes", len(chain.blocks), budget_bytes)
        return None
    table = Table(sizes, rows, room)
    extra = table.at(0, len(chain.blocks) - 1, room)
    if not math.isfinite(extra):
        _log.debug("chain of %d blocks: no plan in %d units of %d bytes", len(chain.blocks), room, unit)
        return None
    if rounding == "down":
        # A value is a tree of sums of at most L + 2 levels with few roundings each: below the true one by no more.
        slack = 1.0 - (len(chain.blocks) + 2) * 2.0**-22
        return ChainSolution((), sizes.least_seconds + max(slack, 0.0) * extra, unit)
    steps = table.plan(chain, room)
    return ChainSolution(steps, simulate_chain(chain, steps)[1], unit)


def _solve_by_size(chain: Chain, budget_bytes: int) -> ChainSolution | None:
    """The best plan that takes seconds to find; of a long chain with the options that are worth their price."""
    if default_slots(chain) == 2000:
        return _solve_quickly(chain, budget_bytes)
    priced = priced_chain(chain)
    solution = _solve_quickly(priced.chain, budget_bytes)
    return solution and replace(solution, steps=priced.original(solution.steps))


def _solve_quickly(chain: Chain, budget_bytes: int) -> ChainSolution | None:
    """The exact program where it is quick, else that of groups; what manages with less only where they find nothing."""
    slots = default_slots(chain)
    attempts: list[Callable[[], ChainSolution | None]] = []
    if slots:
        attempts.append(lambda: solve(chain, budget_bytes, slots))
    if slots < 2000:
        # Where memory holds few blocks, groups of many are too coarse.
        most = sum(max(o.saved_bytes for o in block.options) for block in chain.blocks)
        few = _FEW_GROUPS if budget_bytes * _TIGHT >= most else 2.5 * _FEW_GROUPS
        size = next((n for n in _GROUPS if group_count(chain, n) <= few), _GROUPS[-1])
        attempts.append(lambda: solve_grouped(chain, budget_bytes, size))
    plans = [solution for attempt in attempts for solution in [attempt()] if solution is not None]
    if not plans and len(chain.blocks) <= _TWICE_BLOCKS:
        plans += [s for s in [solve_at_most_twice(chain, budget_bytes)] if s is not None]
    for size in reversed(_GROUPS):
        if plans or group_count(chain, size) == len(chain.blocks):
            continue
        plans += [s for s in [solve_grouped(chain, budget_bytes, size)] if s is not None]
    if not plans and not slots and rows_of(chain).candidates() * 500 <= _PATIENT:
        plans = [s for s in [solve(chain, budget_bytes, 500)] if s is not None]
    if plans:
        return min(plans, key=lambda solution: solution.seconds)
    try:
        steps = minimum_plan(chain, budget_bytes)
    except BudgetError as error:
        _log.debug("chain of %d blocks: %s", len(chain.blocks), error)
        return None
    return ChainSolution(steps, simulate_chain(chain, steps)[1], 1)


def solve_grouped(chain: Chain, budget_bytes: int, size: int, slots: int | None = None) -> ChainSolution | None:
    """The fastest plan where `size` neighbours of a run are taken as one; None if none fits, or still too long a chain.

    Raises:
        ConfigError: numbers that make no sense, no slots.
    """
    check_chain(chain)
    grouped = group_chain(chain, size)
    slots = slots or default_slots(grouped.chain)
    solution = solve(grouped.chain, budget_bytes, slots) if slots else None
    if solution is None:
        return None
    steps = expand_groups(chain, grouped, solution.steps)
    return ChainSolution(steps, simulate_chain(chain, steps)[1], solution.unit_bytes)


class Table:
    """Extra seconds of every row for m = 0..room; +inf where nothing fits."""

    def __init__(self, sizes: Numbers, rows: Rows, room: int) -> None:
        self._sizes, self._rows = sizes, rows
        self._width = width = (room // _WINDOW + 1) * _WINDOW  # slots beyond `room` fill the last window
        self._flat: _Float32s = np.full((rows.count + 1) * width, np.inf, np.float32)
        # The first stretch of `width` is no row: it is what row 0 reads at m < a_j.
        # Every stretch of one window's length, as rows of a view: gathering rows is a copy of whole cache lines.
        self._windows = np.lib.stride_tricks.sliding_window_view(self._flat, _WINDOW)
        table = self._flat.reshape(-1, width)[1:]
        current = -1
        for i, l in rows.order():  # noqa: E741
            if i != current:
                current, starting, reach = i, (rows.starting(i) + 1) * width, sizes.reach(i)
                run = (sizes.started[i + 1 : -1] - sizes.started[i]).astype(np.float32)
            out = table[rows.row(i, l)]
            incoming = int(sizes.gradients[l + 1])
            above = table[rows.row(i + 1, l)] if l > i else None
            for saving in sizes.savings[i]:
                need, extra = saving.need(incoming), np.float32(saving.extra_seconds)
                if need < width and above is None:
                    np.minimum(out[need:], extra, out=out[need:])
                elif need < width and above is not None:
                    rest = above[need - saving.saved : width - saving.saved]
                    np.minimum(out[need:], rest + extra, out=out[need:])
            if l > i:
                lows = reach[: l - i] + incoming
                count = int(lows.searchsorted(width))
                if count and out[lows[0]] > run[0]:
                    right = (rows.ending(i, l)[:count] + 1) * width - sizes.inputs[i + 1 : i + 1 + count]
                    self._split(out, lows[:count], run[:count], right, starting[:count])

    def _split(self, out: _Float32s, lows: Ints, run: _Float32s, right: Ints, left: Ints) -> None:
        """Lower a row to the best split: run + flat[right + m] + flat[left + m] for m >= lows, each (splits,)."""
        flat = self._flat
        begin = int(lows[0]) // _WINDOW
        starts = np.arange(begin * _WINDOW, self._width, _WINDOW)
        now = out[starts]
        starts = starts[now > run[0]]  # rows are non-increasing: a prefix
        if not len(starts):
            return
        now = out[starts]
        ends = starts + (_WINDOW - 1)
        bound = flat[right[:, None] + ends]
        bound += flat[left[:, None] + ends]
        bound += run[:, None]
        if lows[-1] > ends[0]:
            bound[lows[:, None] > ends] = np.inf
        best = bound.argmin(axis=0)
        columns = np.arange(len(starts))
        wins = bound[best, columns] < now
        if not wins.any():
            return
        self._lower(out, lows, run, right, left, starts, columns[wins], best[wins])
        bound[best, columns] = np.inf
        column, split = np.nonzero((bound < out[starts]).T)
        if len(column):
            self._lower(out, lows, run, right, left, starts, column, split)

    def _lower(
        self,
        out: _Float32s,
        lows: Ints,
        run: _Float32s,
        right: Ints,
        left: Ints,
        starts: Ints,
        column: Ints,
        split: Ints,
    ) -> None:
        """Evaluate pairs of a window and a split, windows ascending."""
        begin = starts[column]
        # Where m < a_j the row before the right one is read; those slots are below `lows` and are masked.
        values = self._windows[right[split] + begin]
        values += self._windows[left[split] + begin]
        values += run[split][:, None]
        partial = np.flatnonzero(lows[split] > begin)
        if len(partial):
            inside = np.arange(_WINDOW) < (lows[split[partial]] - begin[partial])[:, None]
            values[partial] = np.where(inside, np.float32(np.inf), values[partial])
        edges = np.flatnonzero(np.diff(column, prepend=-1))
        lowered = np.minimum.reduceat(values, edges, axis=0)
        view = out.reshape(-1, _WINDOW)
        windows = begin[edges] // _WINDOW
        view[windows] = np.minimum(view[windows], lowered)

    def at(self, i: int, l: int, m: int) -> float:  # noqa: E741
        """Extra seconds of a state."""
        return float(self._flat[(self._rows.row(i, l) + 1) * self._width + m])

    def plan(self, chain: Chain, room: int) -> tuple[Step, ...]:
        """Write the plan of the whole chain for m = room; the table must be finite there."""
        sizes, rows, width = self._sizes, self._rows, self._width
        writer = StepWriter(chain)
        pending = [(0, len(chain.blocks) - 1, room)]  # l = -1: the backward of i
        while pending:
            i, l, m = pending.pop()  # noqa: E741
            if l < 0:
                writer.backward(i)
                continue
            incoming = int(sizes.gradients[l + 1])
            best, option, rest, split = math.inf, -1, 0, -1
            for saving in sizes.savings[i]:
                if saving.need(incoming) <= m:
                    extra = saving.extra_seconds + (self.at(i + 1, l, m - saving.saved) if l > i else 0.0)
                    if extra < best:
                        best, option, rest = extra, saving.index, m - saving.saved
            lows = sizes.reach(i)[: l - i] + incoming
            count = int(lows.searchsorted(m, side="right"))
            if count:
                inputs = sizes.inputs[i + 1 : i + 1 + count]
                extras = sizes.started[i + 1 : i + 1 + count] - sizes.started[i]
                extras = extras + self._flat[(rows.ending(i, l)[:count] + 1) * width + m - inputs]
                extras += self._flat[(rows.starting(i)[:count] + 1) * width + m]
                if extras.min() < best:
                    split = i + 1 + int(extras.argmin())
            if split < 0:
                writer.save(i, option)
                pending.append((i, -1, 0))
                if i < l:
                    pending.append((i + 1, l, rest))
            else:
                writer.run_to(i, split)
                pending += [(i, split - 1, m), (split, l, m - int(sizes.inputs[split]))]
        return tuple(writer.steps)
