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
Not checked: that the chain's numbers describe a network. Source: Herrmann, Beaumont et al., arXiv 1911.13214, theorem 1,
with the conditions on memory corrected (d_{l+1} beside every forward, d_{i+1} beside every backward).

Rows of the table are non-increasing in m, so a split is looked at on a window of slots only where its value at the
window's end beats what the window's start has: exact. Splits are searched again while a plan is written: there is no
table of choices.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import numpy.typing as npt

from .states import (
    Ints,
    Rounding,
    ScaledChain,
    StateIndex,
    StepWriter,
    index_states,
    keep_everything,
    scale_chain,
    unit_bytes,
)
from .types import Chain, ChainSolution, Step, simulate_chain

_log = logging.getLogger(__name__)
_Float32s = npt.NDArray[np.float32]
_WINDOW = 64


class TabledChain:
    """The exact program of one chain for a budget, which answers for all smaller ones too, in the same units.

    Args:
        chain: its numbers make sense.
        budget_bytes: the largest that will be asked for, the chain's input included; at least 1.
        slots: units of that budget, at least 1.
        rounding: "up" gives plans, "down" bounds.
        collapse_runs: whether states that are equal share a row.
    """

    def __init__(
        self, chain: Chain, budget_bytes: int, slots: int, *, rounding: Rounding = "up", collapse_runs: bool = True
    ) -> None:
        self._chain, self._rounding = chain, rounding
        self._unit = unit_bytes(chain, budget_bytes, slots)
        self._budget_bytes, self._collapse_runs = budget_bytes, collapse_runs
        self._whole = keep_everything(chain)
        self._whole_peak, self._whole_seconds = simulate_chain(chain, self._whole)
        self._table: Table | None = None

    def solution(self, budget_bytes: int) -> ChainSolution | None:
        """The fastest plan, or the bound, within a budget of at most the table's; None where the units allow none."""
        chain, unit, up = self._chain, self._unit, self._rounding == "up"
        if self._whole_peak <= budget_bytes:
            return ChainSolution(self._whole if up else (), self._whole_seconds, 1)
        if self._table is None:
            sizes, rows = scale_chain(chain, unit, self._rounding), index_states(chain, self._collapse_runs)
            most = self._budget_bytes // unit - int(sizes.inputs[0])
            if most < 0:
                _log.debug("chain of %d blocks: the input alone exceeds %d bytes", len(chain.blocks), budget_bytes)
                return None
            self._table = Table(sizes, rows, most)
        sizes = self._table.sizes
        room = budget_bytes // unit - int(sizes.inputs[0])
        extra = self._table.at(0, len(chain.blocks) - 1, room) if room >= 0 else math.inf
        if not math.isfinite(extra):
            _log.debug("chain of %d blocks: no plan in %d units of %d bytes", len(chain.blocks), room, unit)
            return None
        if not up:
            # A value is a tree of sums of at most L + 2 levels with few roundings each: below the true one by no more.
            slack = 1.0 - (len(chain.blocks) + 2) * 2.0**-22
            return ChainSolution((), sizes.least_seconds + max(slack, 0.0) * extra, unit)
        steps = self._table.plan(chain, room)
        return ChainSolution(steps, simulate_chain(chain, steps)[1], unit)


class Table:
    """Extra seconds of every row for m = 0..room; +inf where nothing fits."""

    def __init__(self, sizes: ScaledChain, rows: StateIndex, room: int) -> None:
        self.sizes, self._rows = sizes, rows
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
        sizes, rows, width = self.sizes, self._rows, self._width
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
