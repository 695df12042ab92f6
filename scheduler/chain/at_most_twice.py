"""Plans of a chain in which no block's forward runs more than twice: for chains too long for the exact solver.

    TWICE(i,m) = least extra time from the loss back to block i, x_i resident, no gradient above waiting:
      save with k (m >= A(i,L,k)):   extra_k + TWICE(i+1, m - ā_k)
      split at j:                    run x_i..x_j storing x_i only, TWICE(j, m - a_j), then blocks i..j-1 again, all
                                     saved:  Σ_{i<=q<j} plain seconds + TWICE(j, m - a_j)
                                     m >= max( P(i,j,L), what saving i..j-1 needs while δ_j waits )

a, ā, A and P are those of `dp`. O(L² slots) at worst, less where few blocks fit the budget at once; segments above 256
blocks are tried at every 64th of their length only. A segment that runs again saves with one rank of option throughout,
from all fastest to all slowest in at most `MOST_RANKS` steps. The plan is never better than that of `dp.ExactSolver` at
the same unit, and equal for most generous budgets; none is found where budgets are very tight.

Not checked: the chain's numbers beyond `types.check_chain`. Source: the recurrence of arXiv 1911.13214, cut short at
one level of recomputation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...memory.errors import ConfigError
from .scaled import Floats, Ints, ScaledChain, choose_unit_bytes, scale_chain
from .simulate import simulate_chain
from .step_writer import StepWriter, keep_everything
from .types import Chain, ChainSolution, ChainStep, check_chain

MOST_RANKS = 4
"""Kinds of segments that run again, by how fast their options are."""
_LONGEST_WITHOUT_GAPS = 256
"""Blocks of a segment up to which every length is tried."""
_SHARE_OF_LENGTH = 64
"""Above that the next length to be tried is longer by one part in so many."""
_WORK_OF_A_SEGMENT = 3000
"""What a segment length takes for each block, in what `dp.WORK_PER_SECOND` counts; measured."""


def solve_at_most_twice(chain: Chain, budget_bytes: int, slots: int = 2000) -> ChainSolution | None:
    """Find the fastest plan within a budget that runs no forward pass more than twice; None where none fits.

    Raises:
        ConfigError: numbers that make no sense, no slots.
    """
    check_chain(chain)
    if slots < 1:
        raise ConfigError("chain planner", "at least one slot", str(slots))
    if budget_bytes < 1:
        return None
    whole = keep_everything(chain)
    peak, seconds = simulate_chain(chain, whole)
    if peak <= budget_bytes:
        return ChainSolution(whole, seconds, 1)
    unit = choose_unit_bytes(chain, budget_bytes, slots)
    scaled = scale_chain(chain, unit)
    room = budget_bytes // unit - int(scaled.inputs[0])
    if room < 0:
        return None
    table = _fill_table(scaled, room)
    if not math.isfinite(table.extra[0, room]):
        return None
    steps = _write_plan(table, chain)
    return ChainSolution(steps, simulate_chain(chain, steps)[1], unit)


def count_work_at_most_twice(count: int) -> int:
    """Count the most work of `solve_at_most_twice` for a chain of `count` blocks, as `dp.WORK_PER_SECOND` counts it."""
    return count * (len(_list_lengths(count)) + 1) * _WORK_OF_A_SEGMENT


@dataclass(frozen=True, slots=True)
class _Rank:
    """One option of each of n blocks, for segments that run again; sums are over the blocks below the index.

    Attributes:
        options: (n,) index of the option.
        saved: (n + 1,) sum of what is saved.
        forward: (n,) the same sum + what this block needs in its forward pass.
        backward: (n,) the same sum + what this block needs in its backward pass.
        extra: (n + 1,) sum of extra seconds.
    """

    options: tuple[int, ...]
    saved: Ints
    forward: Ints
    backward: Ints
    extra: Floats


@dataclass(frozen=True, slots=True)
class _Table:
    """What TWICE is for each block and m.

    Attributes:
        scaled: the chain in units.
        ranks: the kinds of segments that run again.
        room: the largest m.
        extra: (n, room + 1) extra seconds; +inf where nothing fits.
    """

    scaled: ScaledChain
    ranks: tuple[_Rank, ...]
    room: int
    extra: npt.NDArray[np.float32]


def _list_ranks(scaled: ScaledChain) -> tuple[_Rank, ...]:
    found = []
    ranks = min(MOST_RANKS, max(len(options) for options in scaled.options))
    for rank in range(ranks):
        chosen = [options[rank * (len(options) - 1) // max(ranks - 1, 1)] for options in scaled.options]
        saved = np.cumsum([0] + [o.saved for o in chosen], dtype=np.int64)
        forward = saved[:-1] + np.array([o.forward for o in chosen], np.int64)
        backward = saved[:-1] + np.array([o.backward for o in chosen], np.int64)
        extra = np.cumsum([0.0] + [o.extra_seconds for o in chosen])
        found.append(_Rank(tuple(o.index for o in chosen), saved, forward, backward, extra))
    return tuple(found)


def _list_lengths(n: int) -> Ints:
    """List the segment lengths to try: all up to 256, then in steps of a 64th, as neighbours hardly differ."""
    found = [*range(1, min(n, _LONGEST_WITHOUT_GAPS + 1))]
    while found and found[-1] >= _LONGEST_WITHOUT_GAPS:
        following = found[-1] + found[-1] // _SHARE_OF_LENGTH
        if following >= n:
            break
        found.append(following)
    return np.array(found, np.int64)


def _fill_table(scaled: ScaledChain, room: int) -> _Table:
    """Compute TWICE(i, m) for every block i and m from 0 to `room`."""
    n = len(scaled.options)
    table = _Table(scaled, _list_ranks(scaled), room, np.full((n, room + 1), np.inf, np.float32))
    lengths = _list_lengths(n)
    for i in range(n - 1, -1, -1):
        row = table.extra[i]
        for option in scaled.options[i]:
            need, extra = option.units_needed(0), np.float32(option.extra_seconds)
            if need <= room:
                rest = np.float32(0)
                if i + 1 < n:
                    rest = table.extra[i + 1, need - option.saved : room + 1 - option.saved]
                np.minimum(row[need:], rest + extra, out=row[need:])
        for rank in table.ranks:
            _try_segments(table, i, rank, lengths)
    return table


def _try_segments(table: _Table, i: int, rank: _Rank, lengths: Ints) -> None:
    """Lower row i to what segments that begin at block i give, each saved with one rank when it runs again."""
    scaled, room, row = table.scaled, table.room, table.extra[i]
    needs, seconds = _measure_segments(table, i, rank)
    tried = lengths[: lengths.searchsorted(len(needs), side="right")]
    tried = tried[needs[tried - 1] <= room]
    needs, seconds, j = needs[tried - 1], seconds[tried - 1], i + tried
    best = seconds + table.extra[j, room - scaled.inputs[j]]  # rows are non-increasing in m
    for at in np.flatnonzero(best < row[needs]).tolist():
        need, split = int(needs[at]), int(j[at])
        if best[at] < row[need]:
            held = int(scaled.inputs[split])
            rest = table.extra[split, need - held : room + 1 - held]
            np.minimum(row[need:], rest + np.float32(seconds[at]), out=row[need:])


def _measure_segments(table: _Table, i: int, rank: _Rank) -> tuple[Ints, Floats]:
    """For j = i+1, i+2, … while the segment's saved tensors may fit: units needed and extra seconds."""
    scaled, n = table.scaled, len(table.scaled.options)
    end = min(int(rank.saved.searchsorted(rank.saved[i] + table.room, side="right")), n)  # j < end
    if end <= i + 1:
        return np.zeros(0, np.int64), np.zeros(0)
    forward = np.maximum.accumulate(rank.forward[i : end - 1]) - rank.saved[i] + scaled.gradients[i + 1 : end]
    needs = np.maximum(forward, np.maximum.accumulate(rank.backward[i : end - 1]) - rank.saved[i])
    needs = np.maximum(needs, np.maximum(scaled.run_units(i, end), scaled.inputs[i + 1 : end]))
    seconds = scaled.seconds_before[i + 1 : end] - scaled.seconds_before[i] + rank.extra[i + 1 : end] - rank.extra[i]
    return needs, seconds


def _write_plan(table: _Table, chain: Chain) -> tuple[ChainStep, ...]:
    """Write the plan for m = room, where the table must be finite."""
    scaled, n = table.scaled, len(table.scaled.options)
    writer = StepWriter(chain)
    undone: list[tuple[int, int, _Rank | None]] = []
    i, m = 0, table.room
    while i < n:
        best, index, following, rest = math.inf, -1, i + 1, 0
        chosen: _Rank | None = None
        for option in scaled.options[i]:
            if option.units_needed(0) <= m:
                extra = option.extra_seconds + (float(table.extra[i + 1, m - option.saved]) if i + 1 < n else 0.0)
                if extra < best:
                    best, index, rest = extra, option.index, m - option.saved
        for rank in table.ranks:
            needs, seconds = _measure_segments(table, i, rank)
            j = np.flatnonzero(needs <= m) + i + 1
            if len(j):
                extras = seconds[j - i - 1] + table.extra[j, m - scaled.inputs[j]]
                if extras.min() < best:
                    following, chosen = int(j[extras.argmin()]), rank
                    best, rest = float(extras.min()), m - int(scaled.inputs[following])
        if chosen is None:
            writer.save(i, index)
        else:
            writer.run_to(i, following)
        undone.append((i, following, chosen))
        i, m = following, rest
    for begin, end, repeated in reversed(undone):
        if repeated is not None:
            for block in range(begin, end):
                writer.save(block, repeated.options[block])
        for block in range(end - 1, begin - 1, -1):
            writer.run_backward(block)
    return tuple(writer.steps)
