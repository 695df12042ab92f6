"""The numbers of a chain as the dynamic programs read them, and which of their states are one.

A state is an interval (i, l) of blocks. Inside one run of identical blocks it depends on l - i alone, so such states
share a row: exact, and 833 blocks in four runs need 39 thousand rows instead of 348 thousand. Blocks are identical
when all their numbers and the gradient of their output are equal; nothing is rounded for that.

Not checked: the chain itself, see `chain_steps.check_chain`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from .types import Backward, Chain, ForwardCheckpoint, ForwardDiscard, ForwardSave, Step, sensible_backward_transient

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Rounding: TypeAlias = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class ScaledOption:
    """An option in units: it needs `max(δ_{l+1} + forward, backward)` beside its input, and then holds `saved`.

    Attributes:
        index: the option's index in its block.
        saved: what it saves.
        forward: saved + forward transient.
        backward: saved + both gradients + backward transient.
        extra_seconds: forward + backward, above the block's fastest option.
    """

    index: int
    saved: int
    forward: int
    backward: int
    extra_seconds: float

    def need(self, incoming: int) -> int:
        """Units that the option needs where the gradient that waits above the interval takes `incoming`."""
        return max(incoming + self.forward, self.backward)


@dataclass(frozen=True, slots=True)
class ScaledChain:
    """A chain in units of bytes.

    Attributes:
        inputs: (n + 1,) units of x_i; the last is 0.
        gradients: (n + 1,) units of δ_i; the last is 0.
        plain: (n,) x_{i+1} + transient of the plain forward.
        started: (n + 1,) seconds of all plain forwards before block i.
        savings: options of each block, fastest first, without those that an earlier one beats in all that counts.
        least_seconds: seconds of the step where nothing is computed twice.
    """

    inputs: Ints
    gradients: Ints
    plain: Ints
    started: Floats
    savings: tuple[tuple[ScaledOption, ...], ...]
    least_seconds: float

    def reach(self, i: int, end: int | None = None) -> Ints:
        """For j = i+1, …, end-1 (all): units beside x_i and the waiting gradient to run from x_i to x_j, storing nothing."""
        stop = len(self.plain) - 1 if end is None else end - 1
        need = self.inputs[i:stop] + self.plain[i:stop]
        if len(need):
            need[0] = self.plain[i]  # x_i itself is counted elsewhere
        reached: Ints = np.maximum.accumulate(need)
        return reached


def scale_chain(chain: Chain, unit: int = 1, rounding: Rounding = "up") -> ScaledChain:
    """Every size in units, rounded on its own towards more bytes ("up") or fewer ("down")."""

    def units(nbytes: int) -> int:
        return -(-nbytes // unit) if rounding == "up" else nbytes // unit

    blocks = chain.blocks
    inputs = [units(b.input_bytes) for b in blocks] + [0]
    gradients = [units(b.input_gradient_bytes) for b in blocks] + [0]
    seen: dict[tuple[object, ...], tuple[ScaledOption, ...]] = {}
    savings, least = [], 0.0
    for i, block in enumerate(blocks):
        fastest = min(o.forward_seconds + o.backward_seconds for o in block.options)
        least += fastest
        following = blocks[i + 1].input_gradient_bytes if i + 1 < len(blocks) else 0
        key = (block, following)
        if key not in seen:
            rows = []
            for index, option in enumerate(block.options):
                saved, d, d_next = units(option.saved_bytes), gradients[i], gradients[i + 1]
                transient = units(sensible_backward_transient(option, block.input_gradient_bytes, following))
                rows.append(
                    ScaledOption(
                        index,
                        saved,
                        saved + units(max(option.forward_transient_bytes, 0)),
                        max(saved + d + d_next + transient, saved + d_next, d),
                        option.forward_seconds + option.backward_seconds - fastest,
                    )
                )
            seen[key] = _worth_having(sorted(rows, key=lambda s: (s.extra_seconds, s.saved, s.backward, s.forward)))
        savings.append(seen[key])
    plain = [inputs[i + 1] + units(max(b.plain_forward_transient_bytes, 0)) for i, b in enumerate(blocks)]
    started = np.concatenate([[0.0], np.cumsum([b.plain_forward_seconds for b in blocks])])
    return ScaledChain(
        np.array(inputs, np.int64),
        np.array(gradients, np.int64),
        np.array(plain, np.int64),
        started,
        tuple(savings),
        least,
    )


def _worth_having(savings: Iterable[ScaledOption]) -> tuple[ScaledOption, ...]:
    """Of savings in order of their seconds those that need or hold less than every one before them."""
    found: list[ScaledOption] = []
    for s in savings:
        if not any(o.saved <= s.saved and o.forward <= s.forward and o.backward <= s.backward for o in found):
            found.append(s)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class StateIndex:
    """Numbers the states: (i, l) inside a run is `inside[i] + l - i`, any other is `across[i] + l`.

    Attributes:
        first: (n,) first block of the run of block i.
        last: (n,) last block of that run.
        inside: (n,) row of (i, i).
        across: (n,) row of (i, l) is this + l, for l beyond the run.
        count: number of rows.
    """

    first: Ints
    last: Ints
    inside: Ints
    across: Ints
    count: int

    def row(self, i: int, l: int) -> int:  # noqa: E741
        """The row of one state."""
        return int(self.inside[i] + l - i) if l <= self.last[i] else int(self.across[i] + l)

    def starting(self, i: int) -> Ints:
        """Rows of (i, i), (i, i+1), …, (i, L)."""
        n, last = len(self.first), int(self.last[i])
        inner = np.arange(self.inside[i], self.inside[i] + last - i + 1)
        return np.concatenate([inner, np.arange(self.across[i] + last + 1, self.across[i] + n)])

    def ending(self, i: int, l: int) -> Ints:  # noqa: E741
        """Rows of (i+1, l), (i+2, l), …, (l, l)."""
        first = int(self.first[l])
        begin = max(i + 1, first)
        inner = np.arange(self.inside[l] + l - begin, self.inside[l] - 1, -1)
        return inner if begin == i + 1 else np.concatenate([self.across[i + 1 : first] + l, inner])

    def order(self) -> Iterator[tuple[int, int]]:
        """One state of each row, after all that it rests on."""
        n = len(self.first)
        for i in range(n - 1, -1, -1):
            for l in range(int(self.last[i]), n):  # noqa: E741
                yield i, l

    def candidates(self) -> int:
        """Pairs of a row and a split of it: what the exact program has to look at, for each slot."""
        n = len(self.first)
        run, tail = self.last - np.arange(n), n - 1 - self.last
        return int((run * (tail + 1) + tail * (tail + 1) // 2).sum())


def index_states(chain: Chain, collapse_runs: bool = True) -> StateIndex:
    """The rows of a chain; without `collapse_runs` one for each state."""
    blocks, n = chain.blocks, len(chain.blocks)
    following = [b.input_gradient_bytes for b in blocks[1:]] + [0]
    first = np.zeros(n, np.int64)
    for i in range(1, n):
        same = collapse_runs and blocks[i] == blocks[i - 1] and following[i] == following[i - 1]
        first[i] = first[i - 1] if same else i
    last = np.zeros(n, np.int64)
    for i in range(n - 1, -1, -1):
        last[i] = last[i + 1] if i + 1 < n and first[i + 1] == first[i] else i
    inside, across = np.zeros(n, np.int64), np.zeros(n, np.int64)
    count = 0
    for i in range(n):
        if first[i] == i:
            inside[i], count = count, count + int(last[i]) - i + 1
        else:
            inside[i] = inside[i - 1]
        across[i], count = count - int(last[i]) - 1, count + n - 1 - int(last[i])
    return StateIndex(first, last, inside, across, count)


class StepWriter:
    """Collects the steps of a plan; equal steps are one object, as tight plans repeat them by the million."""

    def __init__(self, chain: Chain) -> None:
        self._last = len(chain.blocks) - 1
        self._discard = [ForwardDiscard(i) for i in range(self._last + 1)]
        self.steps: list[Step] = []

    def run_to(self, i: int, j: int) -> None:
        """Keep x_i and run to x_j, storing nothing between."""
        self.steps.append(ForwardCheckpoint(i))
        self.discard(i + 1, j)

    def discard(self, i: int, j: int) -> None:
        """Run from x_i to x_j, keeping neither x_i nor anything between."""
        self.steps += self._discard[i:j]

    def save(self, i: int, option: int) -> None:
        """Run block i so that its backward can follow; the loss does so in its backward."""
        if i < self._last:
            self.steps.append(ForwardSave(i, option))

    def backward(self, i: int) -> None:
        """Run the backward of block i."""
        self.steps.append(Backward(i))


def keep_everything(chain: Chain) -> tuple[Step, ...]:
    """The plan without recomputation, each block with its fastest option."""
    writer = StepWriter(chain)
    for i, savings in enumerate(scale_chain(chain).savings):
        writer.save(i, savings[0].index)
    for i in reversed(range(len(chain.blocks))):
        writer.backward(i)
    return tuple(writer.steps)


def unit_bytes(chain: Chain, budget_bytes: int, slots: int) -> int:
    """The unit that all sizes share if it divides the budget into few enough slots, else budget / slots, rounded up."""
    shared = 0
    blocks = chain.blocks
    for i, block in enumerate(blocks):
        d_next = blocks[i + 1].input_gradient_bytes if i + 1 < len(blocks) else 0
        shared = math.gcd(shared, block.input_bytes, block.input_gradient_bytes)
        shared = math.gcd(shared, max(block.plain_forward_transient_bytes, 0))
        for option in block.options:
            backward = sensible_backward_transient(option, block.input_gradient_bytes, d_next)
            shared = math.gcd(shared, option.saved_bytes, max(option.forward_transient_bytes, 0), backward)
    if shared and budget_bytes // shared <= slots:
        return shared
    return -(-budget_bytes // slots)
