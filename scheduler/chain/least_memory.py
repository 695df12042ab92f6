"""The smallest number of bytes in which a chain can be trained at all, exactly, and a plan that keeps to it.

    Mem(i,l) = min( min_{i<j<=l} max(P(i,j,l), a_j + Mem(j,l), Mem(i,j-1)),  min_k max(A(i,l,k), ā_k + Mem(i+1,l)) )

over whole bytes, without slots and without time; P and A as in `chain_dp`. Minimal among memory-persistent plans.

The plan spends what a budget leaves above the minimum greedily: each state takes what promises the least time, where a
part promises what as many equal blocks take with as many checkpoints as fit above its own minimum, and nothing extra
where it fits without recomputation. That is no optimum: `chain_dp.solve` is better wherever its slots allow a plan. A
chain of n equal blocks at its very minimum runs n²/2 forwards, and the plan is as long.

Sources: the recurrence of arXiv 1911.13214 with the minimum taken over bytes; the forwards of equal blocks are those of
revolve (Griewank and Walther, 2000).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...memory.errors import BudgetError
from .states import Floats, Ints, ScaledChain, ScaledOption, StateIndex, StepWriter, index_states, scale_chain
from .types import Chain, Step, check_chain

SLOTS = 64
"""Checkpoints of a state that its estimate tells apart."""


class _Minima:
    """Per row the least bytes, and the bytes without recomputation."""

    def __init__(self, sizes: ScaledChain, rows: StateIndex) -> None:
        self._sizes, self._rows = sizes, rows
        self.least: Ints = np.zeros(rows.count, np.int64)
        self.kept: Ints = np.zeros(rows.count, np.int64)
        least, inputs = self.least, sizes.inputs
        incoming, kept = sizes.gradients.tolist(), [0] * rows.count
        frugal = {savings: _frugal(savings) for savings in set(sizes.savings)}
        current = -1
        for i, l in rows.order():  # noqa: E741
            if i != current:
                savings = frugal[sizes.savings[i]]
                current, starting, reach = i, rows.starting(i), sizes.reach(i)
                row_of, fastest = starting.tolist(), sizes.savings[i][0]
                left = least[starting]  # those of this i are filled in as they are found
            row = row_of[l - i]
            if l == i:
                left[0] = least[row] = min(self.saving_needs(savings, incoming[l + 1], -1))
                kept[row] = fastest.need(incoming[l + 1])
                continue
            above, begin, lowest = rows.row(i + 1, l), int(rows.first[l]), int(rows.inside[l])
            needs = inputs[i + 1 : l + 1].copy()
            if begin > i + 1:
                needs[: begin - i - 1] += least[rows.across[i + 1 : begin] + l]
                needs[begin - i - 1 :] += least[lowest : lowest + l - begin + 1][::-1]
            else:
                needs += least[lowest : lowest + l - i][::-1]
            np.maximum(needs, left[: l - i], out=needs)
            np.maximum(needs, reach[: l - i] + incoming[l + 1], out=needs)
            left[l - i] = least[row] = min(int(needs.min()), *self.saving_needs(savings, incoming[l + 1], above))
            kept[row] = max(fastest.need(incoming[l + 1]), fastest.saved + kept[above])
        self.kept[:] = kept

    def saving_needs(self, savings: Sequence[ScaledOption], incoming: int, above: int) -> list[int]:
        """For each option of a block the bytes of saving with it, and then the rest, whose row is `above`; -1 for none."""
        if above < 0:
            return [max(incoming + s.forward, s.backward) for s in savings]
        rest = int(self.least[above])
        return [max(incoming + s.forward, s.backward, s.saved + rest) for s in savings]

    def split_needs(self, i: int, l: int) -> Ints:  # noqa: E741
        """For j = i+1..l the bytes of: run to x_j storing x_i, then (j, l), then (i, j-1)."""
        sizes, rows = self._sizes, self._rows
        right = sizes.inputs[i + 1 : l + 1] + self.least[rows.ending(i, l)]
        needs: Ints = np.maximum(right, self.least[rows.starting(i)[: l - i]])
        needs = np.maximum(needs, sizes.reach(i)[: l - i] + sizes.gradients[l + 1])
        return needs


class _Greedy:
    """Chooses for a state what promises the least time of all that its bytes allow."""

    def __init__(self, sizes: ScaledChain, rows: StateIndex, minima: _Minima) -> None:
        self._sizes, self._rows, self._minima = sizes, rows, minima
        self._held: Ints = np.concatenate([[0], np.cumsum(sizes.inputs[:-1])])
        self._forwards = _forwards(len(sizes.savings))

    def _promised(self, first: Ints, last: Ints, row: Ints, nbytes: Ints) -> Floats:
        """Estimated extra seconds of states: those of equal blocks with as many checkpoints as the bytes hold."""
        sizes = self._sizes
        count = last - first + 1
        least, kept = self._minima.least[row], self._minima.kept[row]
        each = np.maximum((self._held[last + 1] - self._held[first]) // count, 1)
        slots = np.minimum((nbytes - least) // each + 1, len(self._forwards) - 1)
        seconds = (sizes.started[last + 1] - sizes.started[first]) / count
        missing = np.maximum(kept - nbytes, 0) / np.maximum(kept - least, 1)
        promised: Floats = seconds * self._forwards[slots, count] * missing
        return promised

    def choose(self, i: int, l: int, nbytes: int) -> tuple[int, int]:  # noqa: E741
        """The choice for a state with `nbytes`: option (or -1), split (or -1)."""
        sizes, rows, minima = self._sizes, self._rows, self._minima
        savings = sizes.savings[i]
        if nbytes >= minima.kept[rows.row(i, l)]:
            return savings[0].index, -1
        above = rows.row(i + 1, l) if l > i else -1
        needs = minima.saving_needs(savings, int(sizes.gradients[l + 1]), above)
        fitting = [saving for saving, need in zip(savings, needs, strict=True) if need <= nbytes]
        best, option = math.inf, -1
        if fitting:
            seconds = np.array([saving.extra_seconds for saving in fitting])
            if l > i:
                rest = nbytes - np.array([saving.saved for saving in fitting], np.int64)
                seconds += self._promised(np.array([i + 1]), np.array([l]), np.array([above]), rest)
            at = int(seconds.argmin())
            best, option = float(seconds[at]), fitting[at].index
        splits = np.flatnonzero(minima.split_needs(i, l) <= nbytes) if l > i else np.zeros(0, np.int64)
        if len(splits):
            j = i + 1 + splits
            first, last, rooms = np.full(len(j), i), np.full(len(j), l), np.full(len(j), nbytes)
            seconds = sizes.started[j] - sizes.started[i]
            seconds += self._promised(j, last, rows.ending(i, l)[splits], rooms - sizes.inputs[j])
            seconds += self._promised(first, j - 1, rows.starting(i)[splits], rooms)
            at = int(seconds.argmin())
            if seconds[at] < best:
                return -1, int(j[at])
        return option, -1


def _frugal(savings: tuple[ScaledOption, ...]) -> tuple[ScaledOption, ...]:
    """Those that no other beats in all their bytes."""
    found: list[ScaledOption] = []
    for s in sorted(savings, key=lambda s: (s.saved, s.backward, s.forward)):
        if not any(o.saved <= s.saved and o.backward <= s.backward and o.forward <= s.forward for o in found):
            found.append(s)
    return tuple(found)


def _forwards(count: int) -> Floats:
    """(slots, blocks): forwards of revolve with 0..SLOTS checkpoints, the input among them, for 0..count equal blocks."""
    blocks = np.arange(count + 1)
    table = np.zeros((SLOTS + 1, count + 1))
    for slots in range(1, SLOTS + 1):
        reached = [1]  # blocks that r reruns of each reach: binomial(slots + r, slots)
        while reached[-1] < count:
            r = len(reached)
            reached.append(reached[-1] * (slots + r) // r)
        reruns = np.searchsorted(reached, blocks)
        saved = np.array([math.comb(slots + r, r - 1) if r else 0 for r in range(len(reached))], np.float64)
        table[slots] = reruns * blocks - saved[reruns]
    return table


def minimum_budget(chain: Chain) -> int:
    """The fewest bytes, the chain's input included, for which a memory-persistent plan exists.

    Raises:
        ConfigError: numbers that make no sense.
    """
    check_chain(chain)
    sizes, rows = scale_chain(chain), index_states(chain)
    minima = _Minima(sizes, rows)
    return int(sizes.inputs[0] + minima.least[rows.row(0, len(chain.blocks) - 1)])


def minimum_plan(chain: Chain, budget_bytes: int | None = None) -> tuple[Step, ...]:
    """A plan within `budget_bytes`, by default within `minimum_budget`; little time where that costs no bytes.

    Raises:
        BudgetError: no memory-persistent plan has so few bytes.
        ConfigError: numbers that make no sense.
    """
    check_chain(chain)
    sizes, rows = scale_chain(chain), index_states(chain)
    minima = _Minima(sizes, rows)
    last = len(chain.blocks) - 1
    least = int(minima.least[rows.row(0, last)])
    room = least if budget_bytes is None else budget_bytes - int(sizes.inputs[0])
    if room < least:
        smallest = least + int(sizes.inputs[0])
        raise BudgetError(
            "chain plan",
            f"at least {smallest} bytes",
            f"{budget_bytes} bytes",
            f"the smallest that works is {smallest}",
        )
    greedy, writer = _Greedy(sizes, rows, minima), StepWriter(chain)
    pending: list[tuple[int, int, int]] = [(0, last, room)]  # l = -1: the backward of i
    while pending:
        i, l, nbytes = pending.pop()  # noqa: E741
        if l < 0:
            writer.backward(i)
            continue
        option, split = greedy.choose(i, l, nbytes)
        if split < 0:
            writer.save(i, option)
            pending.append((i, -1, 0))
            if i < l:
                saved = chain.blocks[i].options[option].saved_bytes
                pending.append((i + 1, l, nbytes - saved))
        else:
            writer.run_to(i, split)
            pending += [(i, split - 1, nbytes), (split, l, nbytes - chain.blocks[split].input_bytes)]
    return tuple(writer.steps)
