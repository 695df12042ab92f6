"""The smallest number of bytes in which a chain can be trained at all, exactly, and a plan that keeps to it.

    Mem(i,l) = min( min_{i<j<=l} max(P(i,j,l), a_j + Mem(j,l), Mem(i,j-1)),  min_k max(A(i,l,k), ā_k + Mem(i+1,l)) )

over whole bytes, without slots and without time; P and A as in `chain_dp`. Minimal among memory-persistent plans.

The plan spends what a budget leaves above the minimum greedily: each state takes the split of least estimated time,
where a part costs nothing extra if it fits without recomputation, else what it costs at its own minimum. That is an
upper bound, not the optimum: `chain_dp.solve` is far better wherever its slots allow a plan. A chain of n equal
blocks at its very minimum runs n²/2 forwards, and the plan is as long.

Source: the recurrence of arXiv 1911.13214 with the minimum taken over bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..memory.errors import BudgetError
from .chain_rows import Floats, Ints, Numbers, Rows, StepWriter, numbers, rows_of
from .chain_steps import Chain, Step, check_chain


class _Minima:
    """Per row: the least bytes, the bytes without recomputation, and extra seconds of the greedy plan at the least."""

    def __init__(self, sizes: Numbers, rows: Rows, with_times: bool) -> None:
        self._sizes, self._rows = sizes, rows
        self.least: Ints = np.zeros(rows.count, np.int64)
        self.kept: Ints = np.zeros(rows.count, np.int64)
        self.extra: Floats = np.zeros(rows.count)
        incoming = sizes.gradients.tolist()
        current = -1
        for i, l in rows.order():  # noqa: E741
            if i != current:
                current, starting, reach = i, rows.starting(i), sizes.reach(i)
            row, ending = int(starting[l - i]), rows.ending(i, l)
            above = int(ending[0]) if l > i else -1
            saving_needs = self._saving_needs(i, incoming[l + 1], above)
            least, splits = min(saving_needs), np.zeros(0, np.int64)
            if l > i:
                splits = self._split_needs(i, l, starting[: l - i], ending, reach[: l - i])
                least = min(least, int(splits.min()))
            self.least[row] = least
            if with_times:
                fastest = sizes.savings[i][0]
                rest = fastest.saved + int(self.kept[above]) if l > i else 0
                self.kept[row] = max(fastest.need(incoming[l + 1]), rest)
                if least < self.kept[row]:
                    state = (i, l, least)
                    self.extra[row] = self._choose(state, above, saving_needs, starting[: l - i], ending, splits)[0]

    def _saving_needs(self, i: int, incoming: int, above: int) -> list[int]:
        """For each option of block i the bytes of saving with it, and then (i+1, l)."""
        rest = 0 if above < 0 else int(self.least[above])
        return [
            max(incoming + s.forward, s.backward, s.saved + rest)
            if above >= 0
            else max(incoming + s.forward, s.backward)
            for s in self._sizes.savings[i]
        ]

    def _split_needs(self, i: int, l: int, starting: Ints, ending: Ints, reach: Ints) -> Ints:  # noqa: E741
        """For j = i+1..l the bytes of: run to x_j storing x_i, then (j, l), then (i, j-1)."""
        needs: Ints = np.maximum(
            reach + self._sizes.gradients[l + 1], self._sizes.inputs[i + 1 : l + 1] + self.least[ending]
        )
        return np.maximum(needs, self.least[starting], out=needs)

    def choose(self, i: int, l: int, nbytes: int) -> tuple[float, int, int]:  # noqa: E741
        """The greedy choice for a state with `nbytes`: extra seconds, option (or -1), split (or -1)."""
        sizes, rows = self._sizes, self._rows
        if nbytes >= self.kept[rows.row(i, l)]:
            return 0.0, sizes.savings[i][0].index, -1
        starting, ending = rows.starting(i)[: l - i], rows.ending(i, l)
        above = int(ending[0]) if l > i else -1
        saving_needs = self._saving_needs(i, int(sizes.gradients[l + 1]), above)
        splits = self._split_needs(i, l, starting, ending, sizes.reach(i)[: l - i])
        return self._choose((i, l, nbytes), above, saving_needs, starting, ending, splits)

    def _choose(
        self,
        state: tuple[int, int, int],
        above: int,
        saving_needs: Sequence[int],
        starting: Ints,
        ending: Ints,
        splits: Ints,
    ) -> tuple[float, int, int]:
        sizes = self._sizes
        i, _l, nbytes = state
        best = (math.inf, -1, -1)
        for saving, need in zip(sizes.savings[i], saving_needs, strict=True):
            if need <= nbytes:
                rest = 0.0 if above < 0 or nbytes - saving.saved >= self.kept[above] else float(self.extra[above])
                if saving.extra_seconds + rest < best[0]:
                    best = (saving.extra_seconds + rest, saving.index, -1)
        fits = np.flatnonzero(splits <= nbytes)
        if len(fits):
            right, left = ending[fits], starting[fits]
            rooms = nbytes - sizes.inputs[i + 1 + fits]
            seconds = sizes.started[i + 1 + fits] - sizes.started[i]
            seconds += np.where(rooms >= self.kept[right], 0.0, self.extra[right])
            seconds += np.where(nbytes >= self.kept[left], 0.0, self.extra[left])
            split = int(seconds.argmin())
            if seconds[split] < best[0]:
                best = (float(seconds[split]), -1, i + 1 + int(fits[split]))
        return best


def minimum_budget(chain: Chain) -> int:
    """The fewest bytes, the chain's input included, for which a memory-persistent plan exists.

    Raises:
        ConfigError: numbers that make no sense.
    """
    check_chain(chain)
    sizes, rows = numbers(chain), rows_of(chain)
    minima = _Minima(sizes, rows, with_times=False)
    return int(sizes.inputs[0] + minima.least[rows.row(0, len(chain.blocks) - 1)])


def minimum_plan(chain: Chain, budget_bytes: int | None = None) -> tuple[Step, ...]:
    """A plan within `budget_bytes`, by default within `minimum_budget`; little time where that costs no bytes.

    Raises:
        BudgetError: no memory-persistent plan has so few bytes.
        ConfigError: numbers that make no sense.
    """
    check_chain(chain)
    sizes, rows = numbers(chain), rows_of(chain)
    minima = _Minima(sizes, rows, with_times=True)
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
    writer = StepWriter(chain)
    pending: list[tuple[int, int, int]] = [(0, last, room)]  # l = -1: the backward of i
    while pending:
        i, l, nbytes = pending.pop()  # noqa: E741
        if l < 0:
            writer.backward(i)
            continue
        _, option, split = minima.choose(i, l, nbytes)
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
