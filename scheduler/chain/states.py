"""Which states of the dynamic programs over a chain are one and share a row of their tables.

A state is an interval (i, l) of blocks, both ends included. Inside one run of identical blocks it depends on l - i
alone, so such states share a row. This is exact, and 833 blocks in four runs need 39 thousand rows instead of 348
thousand. Blocks are identical when all their numbers and the gradient of their output are equal; nothing is rounded for
that.

Not checked: the chain itself, see `types.check_chain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .scaled import Ints
from .types import Chain


@dataclass(frozen=True, slots=True)
class StateIndex:
    """The row of every state: (i, l) inside a run has row `inside[i] + l - i`, any other has `across[i] + l`.

    Attributes:
        run_first: (n,) first block of the run of block i.
        run_last: (n,) last block of that run.
        inside: (n,) row of (i, i).
        across: (n,) what is added to l for the row of (i, l), where l is beyond the run.
        row_count: number of rows.
    """

    run_first: Ints
    run_last: Ints
    inside: Ints
    across: Ints
    row_count: int

    def row(self, i: int, last: int) -> int:
        """The row of the state (i, last)."""
        return int(self.inside[i] + last - i) if last <= self.run_last[i] else int(self.across[i] + last)

    def rows_from(self, i: int) -> Ints:
        """The rows of (i, i), (i, i+1), …, (i, L)."""
        n, run_last = len(self.run_first), int(self.run_last[i])
        inner = np.arange(self.inside[i], self.inside[i] + run_last - i + 1)
        return np.concatenate([inner, np.arange(self.across[i] + run_last + 1, self.across[i] + n)])

    def rows_to(self, i: int, last: int) -> Ints:
        """The rows of (i+1, last), (i+2, last), …, (last, last)."""
        run_first = int(self.run_first[last])
        begin = max(i + 1, run_first)
        inner = np.arange(self.inside[last] + last - begin, self.inside[last] - 1, -1)
        return inner if begin == i + 1 else np.concatenate([self.across[i + 1 : run_first] + last, inner])

    def walk(self) -> Iterator[tuple[int, int]]:
        """Go through the rows, one state of each, every state after all that its value is made from."""
        n = len(self.run_first)
        for i in range(n - 1, -1, -1):
            for last in range(int(self.run_last[i]), n):
                yield i, last

    def count_splits(self) -> int:
        """Count pairs of a row and a split of it: what the exact solver looks at, for each slot."""
        n = len(self.run_first)
        run, tail = self.run_last - np.arange(n), n - 1 - self.run_last
        return int((run * (tail + 1) + tail * (tail + 1) // 2).sum())


def index_states(chain: Chain) -> StateIndex:
    """Number the rows of a chain."""
    blocks, n = chain.blocks, len(chain.blocks)
    next_gradient = [b.input_gradient_bytes for b in blocks[1:]] + [0]
    run_first = np.zeros(n, np.int64)
    for i in range(1, n):
        same = blocks[i] == blocks[i - 1] and next_gradient[i] == next_gradient[i - 1]
        run_first[i] = run_first[i - 1] if same else i
    run_last = np.zeros(n, np.int64)
    for i in range(n - 1, -1, -1):
        run_last[i] = run_last[i + 1] if i + 1 < n and run_first[i + 1] == run_first[i] else i
    inside, across = np.zeros(n, np.int64), np.zeros(n, np.int64)
    count = 0
    for i in range(n):
        if run_first[i] == i:
            inside[i], count = count, count + int(run_last[i]) - i + 1
        else:
            inside[i] = inside[i - 1]
        across[i], count = count - int(run_last[i]) - 1, count + n - 1 - int(run_last[i])
    return StateIndex(run_first, run_last, inside, across, count)
