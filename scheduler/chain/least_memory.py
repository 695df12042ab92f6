"""The smallest number of bytes in which a chain can be trained at all, exactly, and a plan that keeps to it.

    Mem(i,l) = min( min_{i<j<=l} max(P(i,j,l), a_j + Mem(j,l), Mem(i,j-1)),  min_k max(A(i,l,k), ā_k + Mem(i+1,l)) )

over whole bytes, without slots and without time; P and A as in `dp`. It is minimal among memory-persistent plans.

The plan spends what a budget leaves above the minimum greedily: each state takes the choice that promises the least
time. A part of the chain promises what as many equal blocks take with as many checkpoints as fit above its own minimum,
and nothing extra where it fits without recomputation. That is no optimum: the plan of `dp.ExactSolver` is better
wherever its slots allow one. A chain of n equal blocks at its very minimum runs n²/2 forward passes, and its plan is as
long. The steps are counted without being written, from the at most 2n intervals of the plan.

Sources: the recurrence of arXiv 1911.13214 with the minimum taken over bytes; the forward passes of equal blocks are
those of revolve (Griewank and Walther, 2000).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...memory.errors import BudgetError
from .intervals import IntervalChoice, Save, Split, count_steps, write_intervals
from .pareto import drop_dominated
from .scaled import Floats, Ints, ScaledChain, ScaledOption, scale_chain
from .states import StateIndex, index_states
from .types import Chain, ChainStep, check_chain

MOST_CHECKPOINTS = 64
"""Checkpoints of a state beyond which its estimated time no longer falls."""


@dataclass(frozen=True, slots=True)
class _Minima:
    """The bytes of every state of a chain.

    Attributes:
        scaled: the chain in units of a byte.
        states: the rows of the states.
        least: (rows,) the least bytes of a state.
        whole: (rows,) the bytes of a state that recomputes nothing.
    """

    scaled: ScaledChain
    states: StateIndex
    least: Ints
    whole: Ints

    def split_needs(self, i: int, last: int) -> Ints:
        """For j = i+1..last the bytes of: run to x_j storing x_i, then (j, last), then (i, j-1)."""
        scaled, states = self.scaled, self.states
        right = scaled.inputs[i + 1 : last + 1] + self.least[states.rows_to(i, last)]
        needs: Ints = np.maximum(right, self.least[states.rows_from(i)[: last - i]])
        needs = np.maximum(needs, scaled.run_units(i)[: last - i] + scaled.gradients[last + 1])
        return needs


def _find_minima(chain: Chain) -> _Minima:
    """Compute Mem(i, l) of every state, and what the state takes without recomputation."""
    scaled, states = scale_chain(chain), index_states(chain)
    least: Ints = np.zeros(states.row_count, np.int64)
    whole = [0] * states.row_count
    inputs, gradients = scaled.inputs, scaled.gradients.tolist()
    frugal = {options: _drop_larger(options) for options in set(scaled.options)}
    current = -1
    for i, last in states.walk():
        if i != current:
            options, fastest = frugal[scaled.options[i]], scaled.options[i][0]
            current, starting, run_units = i, states.rows_from(i), scaled.run_units(i)
            row_of = starting.tolist()
            left = least[starting]  # those of this i are filled in as they are found
        row, waiting = row_of[last - i], gradients[last + 1]
        if last == i:
            left[0] = least[row] = min(_list_saving_needs(options, waiting, None))
            whole[row] = fastest.units_needed(waiting)
            continue
        above, begin, lowest = states.row(i + 1, last), int(states.run_first[last]), int(states.inside[last])
        needs = inputs[i + 1 : last + 1].copy()
        if begin > i + 1:
            needs[: begin - i - 1] += least[states.across[i + 1 : begin] + last]
            needs[begin - i - 1 :] += least[lowest : lowest + last - begin + 1][::-1]
        else:
            needs += least[lowest : lowest + last - i][::-1]
        np.maximum(needs, left[: last - i], out=needs)
        np.maximum(needs, run_units[: last - i] + waiting, out=needs)
        saving = _list_saving_needs(options, waiting, int(least[above]))
        left[last - i] = least[row] = min(int(needs.min()), *saving)
        whole[row] = max(fastest.units_needed(waiting), fastest.saved + whole[above])
    return _Minima(scaled, states, least, np.array(whole, np.int64))


def _list_saving_needs(options: Sequence[ScaledOption], waiting_gradient: int, rest: int | None) -> list[int]:
    """List, for each option of a block, the bytes of saving with it and then running the rest of the interval.

    Args:
        options: of the block.
        waiting_gradient: bytes of the gradient that waits above the interval.
        rest: the least bytes of the rest of the interval; None where the block is all of it.
    """
    if rest is None:
        return [max(waiting_gradient + o.forward, o.backward) for o in options]
    return [max(waiting_gradient + o.forward, o.backward, o.saved + rest) for o in options]


def _drop_larger(options: tuple[ScaledOption, ...]) -> tuple[ScaledOption, ...]:
    """Drop the options that another one beats in all its bytes."""
    by_bytes = sorted(options, key=lambda o: (o.saved, o.backward, o.forward))
    return tuple(drop_dominated(by_bytes, lambda o: (o.saved, o.backward, o.forward)))


class _GreedyChooser:
    """Chooses for a state what promises the least time of all that its bytes allow.

    Args:
        minima: the bytes of every state.
        inputs_before: (n + 1,) the sum of the inputs of all blocks before block i.
        forwards: (checkpoints, blocks) from `_count_forwards`.
    """

    def __init__(self, minima: _Minima, inputs_before: Ints, forwards: Floats) -> None:
        self._scaled, self._states, self._minima = minima.scaled, minima.states, minima
        self._inputs_before, self._forwards = inputs_before, forwards
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def choose(self, i: int, last: int, nbytes: int) -> tuple[int, int]:
        """Choose for a state with `nbytes` an option or a split; the other of the two is -1.

        States of one row choose alike, so each row is looked at once for as many bytes.
        """
        key = self._states.row(i, last), nbytes
        if key not in self._known:
            option, split = self._look(i, last, nbytes)
            self._known[key] = option, split - i
        option, length = self._known[key]
        return option, i + length if option < 0 else -1

    def _estimate(self, first: Ints, last: Ints, row: Ints, nbytes: Ints) -> Floats:
        """Estimate the extra seconds of states as those of equal blocks with as many checkpoints as the bytes hold."""
        scaled = self._scaled
        count = last - first + 1
        least, whole = self._minima.least[row], self._minima.whole[row]
        each = np.maximum((self._inputs_before[last + 1] - self._inputs_before[first]) // count, 1)
        checkpoints = np.minimum((nbytes - least) // each + 1, len(self._forwards) - 1)
        seconds = (scaled.seconds_before[last + 1] - scaled.seconds_before[first]) / count
        missing = np.maximum(whole - nbytes, 0) / np.maximum(whole - least, 1)
        estimated: Floats = seconds * self._forwards[checkpoints, count] * missing
        return estimated

    def _look(self, i: int, last: int, nbytes: int) -> tuple[int, int]:
        """Choose for one state of a row, as `choose` does for all of them."""
        scaled, states, minima = self._scaled, self._states, self._minima
        options = scaled.options[i]
        if nbytes >= minima.whole[states.row(i, last)]:
            return options[0].index, -1
        above = states.row(i + 1, last) if last > i else -1
        rest_bytes = int(minima.least[above]) if last > i else None
        needs = _list_saving_needs(options, int(scaled.gradients[last + 1]), rest_bytes)
        fitting = [option for option, need in zip(options, needs, strict=True) if need <= nbytes]
        best, chosen = math.inf, -1
        if fitting:
            seconds = np.array([option.extra_seconds for option in fitting])
            if last > i:
                rest = nbytes - np.array([option.saved for option in fitting], np.int64)
                seconds += self._estimate(np.array([i + 1]), np.array([last]), np.array([above]), rest)
            at = int(seconds.argmin())
            best, chosen = float(seconds[at]), fitting[at].index
        splits = np.flatnonzero(minima.split_needs(i, last) <= nbytes) if last > i else np.zeros(0, np.int64)
        if len(splits):
            j = i + 1 + splits
            firsts, lasts, rooms = np.full(len(j), i), np.full(len(j), last), np.full(len(j), nbytes)
            seconds = scaled.seconds_before[j] - scaled.seconds_before[i]
            seconds += self._estimate(j, lasts, states.rows_to(i, last)[splits], rooms - scaled.inputs[j])
            seconds += self._estimate(firsts, j - 1, states.rows_from(i)[splits], rooms)
            at = int(seconds.argmin())
            if seconds[at] < best:
                return -1, int(j[at])
        return chosen, -1


def _make_chooser(minima: _Minima) -> _GreedyChooser:
    inputs_before: Ints = np.concatenate([[0], np.cumsum(minima.scaled.inputs[:-1])])
    return _GreedyChooser(minima, inputs_before, _count_forwards(len(minima.scaled.options)))


def _count_forwards(count: int) -> Floats:
    """Count revolve's forward passes of 0..count equal blocks with 0..MOST_CHECKPOINTS checkpoints.

    Returns:
        (checkpoints, blocks); the input of the blocks is one of the checkpoints.
    """
    blocks = np.arange(count + 1)
    table = np.zeros((MOST_CHECKPOINTS + 1, count + 1))
    for checkpoints in range(1, MOST_CHECKPOINTS + 1):
        reached = [1]  # blocks that r reruns of each reach: binomial(checkpoints + r, checkpoints)
        while reached[-1] < count:
            r = len(reached)
            reached.append(reached[-1] * (checkpoints + r) // r)
        reruns = np.searchsorted(reached, blocks)
        saved = np.array([math.comb(checkpoints + r, r - 1) if r else 0 for r in range(len(reached))], np.float64)
        table[checkpoints] = reruns * blocks - saved[reruns]
    return table


class LeastMemorySolver:
    """Plans one chain for any budget from its minimum up; the bytes of its states are found once.

    Args:
        chain: a chain whose numbers make sense.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    @cached_property
    def _minima(self) -> _Minima:
        return _find_minima(self._chain)

    @cached_property
    def _chooser(self) -> _GreedyChooser:
        return _make_chooser(self._minima)

    @property
    def least_bytes(self) -> int:
        """The fewest bytes, the chain's input included, for which a memory-persistent plan exists."""
        minima = self._minima
        return int(minima.scaled.inputs[0] + minima.least[minima.states.row(0, len(self._chain.blocks) - 1)])

    def count_steps(self, budget_bytes: int) -> int:
        """Count the steps of the plan that `write` writes for a budget of at least `least_bytes`."""
        return count_steps(self._chain, self._find_room(budget_bytes), self._choose)

    def write(self, budget_bytes: int) -> tuple[ChainStep, ...]:
        """Write a plan within the budget that saves time where bytes are left.

        Raises:
            BudgetError: no memory-persistent plan has so few bytes.
        """
        if budget_bytes < self.least_bytes:
            raise BudgetError(
                "chain plan",
                f"at least {self.least_bytes} bytes",
                f"{budget_bytes} bytes",
                f"the smallest that works is {self.least_bytes}",
            )
        return write_intervals(self._chain, self._find_room(budget_bytes), self._choose)

    def _find_room(self, budget_bytes: int) -> int:
        return budget_bytes - self._chain.blocks[0].input_bytes

    def _choose(self, i: int, last: int, nbytes: int) -> IntervalChoice:
        option, split = self._chooser.choose(i, last, nbytes)
        if split < 0:
            return Save(option, nbytes - self._chain.blocks[i].options[option].saved_bytes)
        return Split(split, nbytes - self._chain.blocks[split].input_bytes)


def find_minimum_budget(chain: Chain) -> int:
    """Find the fewest bytes, the chain's input included, for which a memory-persistent plan exists.

    Raises:
        ConfigError: numbers that make no sense.
    """
    check_chain(chain)
    return LeastMemorySolver(chain).least_bytes


def find_minimum_plan(chain: Chain, budget_bytes: int | None = None) -> tuple[ChainStep, ...]:
    """Write a plan within `budget_bytes` that saves time where bytes are left; by default within the minimum budget.

    However many steps it has; `short_plans` bounds them.

    Raises:
        BudgetError: no memory-persistent plan has so few bytes.
        ConfigError: numbers that make no sense.
    """
    check_chain(chain)
    solver = LeastMemorySolver(chain)
    return solver.write(solver.least_bytes if budget_bytes is None else budget_bytes)
