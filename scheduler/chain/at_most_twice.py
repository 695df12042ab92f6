"""Plans of a chain in which no block's forward runs more than twice: for chains too long for the exact program.

    TWICE(i,m) = least extra time from the loss back to block i, x_i resident, no gradient above waiting:
      save with k (m >= A(i,L,k)):   extra_k + TWICE(i+1, m - ā_k)
      split at j:                    run x_i..x_j storing x_i only, TWICE(j, m - a_j), then blocks i..j-1 again, all
                                     saved:  Σ_{i<=q<j} plain seconds + TWICE(j, m - a_j)
                                     m >= max( P(i,j,L), what saving i..j-1 needs while δ_j waits )

O(L² slots) at worst, less where few blocks fit the budget at once; segments above 256 blocks are tried at every 64th of
their length only. A segment that runs again saves with one rank of option throughout, from all fastest to all slowest
in at most `RANKS` steps. Never better than `chain_dp.solve` at the same unit; equal for most generous budgets; finds
nothing where budgets are very tight.

Not checked: the chain's numbers beyond `chain_steps.check_chain`. Source: the recurrence of arXiv 1911.13214, cut short
at one level of recomputation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...memory.errors import ConfigError
from .states import Floats, Ints, ScaledChain, StepWriter, keep_everything, scale_chain, unit_bytes
from .types import Chain, ChainSolution, Step, check_chain, simulate_chain


def solve_at_most_twice(chain: Chain, budget_bytes: int, slots: int = 2000) -> ChainSolution | None:
    """The fastest plan within a budget that runs no forward more than twice, or None if none fits.

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
    unit = unit_bytes(chain, budget_bytes, slots)
    sizes = scale_chain(chain, unit)
    room = budget_bytes // unit - int(sizes.inputs[0])
    if room < 0:
        return None
    table = _Table(sizes, room)
    if not math.isfinite(table.extra[0, room]):
        return None
    steps = table.plan(chain, room)
    return ChainSolution(steps, simulate_chain(chain, steps)[1], unit)


def at_most_twice_work(count: int) -> int:
    """What `solve_at_most_twice` does at most for a chain of `count` blocks, in what `chain_ladder` counts; measured."""
    return count * (len(_lengths(count)) + 1) * 3000


RANKS = 4
"""Kinds of segments that run again, by how fast their options are."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """One option of each block; sums are over blocks below the index.

    Attributes:
        options: (n,) index of the option.
        saved: (n + 1,) sum of what is saved.
        forward: (n,) the same sum + this block's need of its forward.
        backward: (n,) the same sum + this block's need of its backward.
        extra: (n + 1,) sum of extra seconds.
    """

    options: tuple[int, ...]
    saved: Ints
    forward: Ints
    backward: Ints
    extra: Floats


def _ranks(sizes: ScaledChain) -> list[_Rank]:
    found = []
    ranks = min(RANKS, max(len(s) for s in sizes.savings))
    for rank in range(ranks):
        chosen = [s[rank * (len(s) - 1) // max(ranks - 1, 1)] for s in sizes.savings]
        saved = np.cumsum([0] + [s.saved for s in chosen], dtype=np.int64)
        forward = saved[:-1] + np.array([s.forward for s in chosen], np.int64)
        backward = saved[:-1] + np.array([s.backward for s in chosen], np.int64)
        extra = np.cumsum([0.0] + [s.extra_seconds for s in chosen])
        found.append(_Rank(tuple(s.index for s in chosen), saved, forward, backward, extra))
    return found


def _lengths(n: int) -> Ints:
    """Segment lengths that are tried: all up to 256, then in steps of a 64th, as neighbours differ by next to nothing."""
    found = [*range(1, min(n, 257))]
    while found and found[-1] + found[-1] // 64 < n and found[-1] >= 256:
        found.append(found[-1] + found[-1] // 64)
    return np.array(found, np.int64)


class _Table:
    """Extra seconds (n, room + 1) of TWICE; +inf where nothing fits."""

    def __init__(self, sizes: ScaledChain, room: int) -> None:
        self._sizes, self._room = sizes, room
        self._ranks = _ranks(sizes)
        n = len(sizes.savings)
        self.extra = np.full((n, room + 1), np.inf, np.float32)
        inputs = sizes.inputs.tolist()
        lengths = _lengths(n)
        for i in range(n - 1, -1, -1):
            row = self.extra[i]
            for saving in sizes.savings[i]:
                need, extra = saving.need(0), np.float32(saving.extra_seconds)
                if need <= room:
                    rest = (
                        self.extra[i + 1, need - saving.saved : room + 1 - saving.saved] if i + 1 < n else np.float32(0)
                    )
                    np.minimum(row[need:], rest + extra, out=row[need:])
            for rank in self._ranks:
                needs, seconds = self._segments(i, rank)
                tried = lengths[: lengths.searchsorted(len(needs), side="right")]
                tried = tried[needs[tried - 1] <= room]
                needs, seconds, j = needs[tried - 1], seconds[tried - 1], i + tried
                best = seconds + self.extra[j, room - sizes.inputs[j]]  # rows are non-increasing in m
                for at in np.flatnonzero(best < row[needs]).tolist():
                    need, split = int(needs[at]), int(j[at])
                    if best[at] < row[need]:
                        rest = self.extra[split, need - inputs[split] : room + 1 - inputs[split]]
                        np.minimum(row[need:], rest + np.float32(seconds[at]), out=row[need:])

    def _segments(self, i: int, rank: _Rank) -> tuple[Ints, Floats]:
        """For j = i+1, i+2, … while the segment's saved tensors may fit: units needed and extra seconds."""
        sizes, n = self._sizes, len(self._sizes.savings)
        end = min(int(rank.saved.searchsorted(rank.saved[i] + self._room, side="right")), n)  # j < end
        if end <= i + 1:
            return np.zeros(0, np.int64), np.zeros(0)
        forward = np.maximum.accumulate(rank.forward[i : end - 1]) - rank.saved[i] + sizes.gradients[i + 1 : end]
        needs = np.maximum(forward, np.maximum.accumulate(rank.backward[i : end - 1]) - rank.saved[i])
        needs = np.maximum(needs, np.maximum(sizes.reach(i, end), sizes.inputs[i + 1 : end]))
        seconds = sizes.started[i + 1 : end] - sizes.started[i] + rank.extra[i + 1 : end] - rank.extra[i]
        return needs, seconds

    def plan(self, chain: Chain, room: int) -> tuple[Step, ...]:
        """Write the plan for m = room; the table must be finite there."""
        sizes, n = self._sizes, len(self._sizes.savings)
        writer = StepWriter(chain)
        undone: list[tuple[int, int, _Rank | None]] = []
        i, m = 0, room
        while i < n:
            best, option, following, rest = math.inf, -1, i + 1, 0
            chosen: _Rank | None = None
            for saving in sizes.savings[i]:
                if saving.need(0) <= m:
                    extra = saving.extra_seconds + (float(self.extra[i + 1, m - saving.saved]) if i + 1 < n else 0.0)
                    if extra < best:
                        best, option, rest = extra, saving.index, m - saving.saved
            for rank in self._ranks:
                needs, seconds = self._segments(i, rank)
                j = np.flatnonzero(needs <= m) + i + 1
                if len(j):
                    extras = seconds[j - i - 1] + self.extra[j, m - sizes.inputs[j]]
                    if extras.min() < best:
                        following, chosen = int(j[extras.argmin()]), rank
                        best, rest = float(extras.min()), m - int(sizes.inputs[following])
            if chosen is None:
                writer.save(i, option)
            else:
                writer.run_to(i, following)
            undone.append((i, following, chosen))
            i, m = following, rest
        for i, following, chosen in reversed(undone):
            if chosen is not None:
                for q in range(i, following):
                    writer.save(q, chosen.options[q])
            for q in range(following - 1, i - 1, -1):
                writer.backward(q)
        return tuple(writer.steps)
