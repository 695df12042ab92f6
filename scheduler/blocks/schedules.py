"""What a block may save for its backward pass: an exact search for the sets and orders that are worth choosing from.

A schedule of a block is the set of tensors that its forward pass leaves, and an order of its backward pass in which
what is missing is made again where it is needed. The search goes backwards from the end of the backward pass over
states (backward operations done, tensors there) and finds all schedules of which none is better in seconds and in
bytes, for all sets at once. A label is the seconds from its state to the end, and the most bytes alive on the way. Two
steps lead to a state: the next unit of backward operations, after which operands may be dropped, and making a tensor
again from others that are there. Dropping a tensor anywhere but at a use of it is never better.

Decided from operations, sizes and seconds. The search is exact for blocks of which the backward pass reads at most
`search_space.MOST_DROPPABLE` tensors that are not small; of larger blocks only the tensors that free the most bytes for
their seconds may be dropped. `units` lists the orders of a unit. Schedules that repeat more than twice what the forward
pass costs are not looked at. Not checked: that the block's numbers describe a network.

Source: several options per block are Rockmate's (Zhao et al., 2023); dropping what is cheap to make is SuperNeurons'
(Wang et al., 2018, section 3.4).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .cut import BlockOps
from .passes import PassCosts
from .search_space import SearchSpace, TensorSet, describe_search_space

logger = logging.getLogger(__name__)

MOST_LABELS = 100_000
"""Labels after which the search ends for lack of time; schedules of few seconds are found first."""


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """One way to run a block forward and backward.

    Attributes:
        saved: tensors that the forward pass leaves, the block's output included.
        backward: operations of the backward pass in order, repeated ones of the forward pass between them.
    """

    saved: frozenset[int]
    backward: tuple[int, ...]


def find_schedules(block: BlockOps, output: int, incoming: int, passes: PassCosts) -> list[BlockSchedule]:
    """Find all schedules of a block that are worth looking at, the one that repeats nothing among them.

    Args:
        block: any block but the loss.
        output: the tensor that leaves the block.
        incoming: the gradient of `output`.
        passes: sizes, seconds and peaks.
    """
    return _Search(describe_search_space(block, output, incoming, passes), passes).find_schedules()


class _Label(NamedTuple):
    """A way from a state to the end of the backward pass; labels are looked at in this order.

    Attributes:
        seconds: of operations that are repeated.
        peak: the most bytes alive on the way.
        number: the label's place in the history.
        position: how many units come before the state.
        there: the droppable tensors that are there.
    """

    seconds: float
    peak: int
    number: int
    position: int
    there: TensorSet


class _Search:
    """The search over the states of one block.

    Args:
        space: what is known of the block.
        passes: sizes, seconds and peaks.
    """

    def __init__(self, space: SearchSpace, passes: PassCosts) -> None:
        self._space, self._passes = space, passes
        self._sizes: dict[TensorSet, int] = {0: 0}
        self._unit_peaks: dict[tuple[int, TensorSet], tuple[int, int]] = {}
        self._remake_peaks: dict[tuple[int, TensorSet], int] = {}

    def find_schedules(self) -> list[BlockSchedule]:
        """Find the schedules that no other beats in bytes held, in seconds, and in what their passes need."""
        history, labels = self._find_labels()
        forward = self._find_forward_peaks([label.there for label in labels])
        costs = np.array(
            [
                [label.seconds, self._size(label.there), need, label.peak]
                for label, need in zip(labels, forward, strict=True)
            ]
        )
        chosen: list[int] = []
        for i in range(len(labels)):
            if not (costs[chosen] <= costs[i]).all(axis=1).any():
                chosen.append(i)
        return [self._write_schedule(history, labels[i]) for i in chosen]

    def _size(self, tensors: TensorSet) -> int:
        if tensors not in self._sizes:
            self._sizes[tensors] = self._passes.nbytes(self._list(tensors))
        return self._sizes[tensors]

    def _list(self, tensors: TensorSet) -> list[int]:
        return [t for t, digit in self._space.digits.items() if digit & tensors]

    def _find_unit_peak(self, k: int, after: TensorSet) -> tuple[int, int]:
        """Find the peak of unit k, of whose droppable operands `after` stay, and which of its orders has it."""
        key = k, after
        if key not in self._unit_peaks:
            space, x = self._space, self._space.block.input
            present = [x, *self._list(space.unit_reads[k]), *space.present[k]]
            final = [x, *self._list(after), *space.present[k + 1]]
            peaks = [self._passes.peak(order, present, final) for order in space.units[k]]
            self._unit_peaks[key] = min((peak, number) for number, peak in enumerate(peaks))
        return self._unit_peaks[key]

    def _find_remake_peak(self, number: int, after: TensorSet) -> int:
        """Find the peak of making tensors again beside what else is there; of operands and outputs `after` stay."""
        key = number, after
        if key not in self._remake_peaks:
            remake, x = self._space.remakes[number], self._space.block.input
            present = [x, *remake.others, *self._list(remake.needs)]
            final = [x, *remake.others, *self._list(after)]
            peak = self._passes.peak(remake.ops, present, final) - self._passes.nbytes([x, *remake.others])
            self._remake_peaks[key] = peak
        return self._remake_peaks[key]

    def _find_forward_peaks(self, sets: Sequence[TensorSet]) -> list[int]:
        """Find for each set the peak of the forward pass that leaves it: what each tensor adds to a step is summed."""
        space, passes, forward = self._space, self._passes, self._space.block.forward
        x = space.block.input
        kept = [x, *space.always_saved, space.output]
        plain = passes.live_bytes(forward, [x], kept)
        added = {digit: passes.live_bytes(forward, [x], [*kept, t]) - plain for t, digit in space.digits.items()}
        return [int((plain + sum(more for digit, more in added.items() if digit & there)).max()) for there in sets]

    def _find_labels(self) -> tuple[list[tuple[Sequence[int], int]], list[_Label]]:
        """Run the search.

        Returns:
            The history, which says what each label does and which label follows it; and all labels at the start of the
            backward pass.
        """
        space, passes = self._space, self._passes
        count, ops = len(space.units), passes.graph.ops
        base = [passes.nbytes([space.block.input, *there]) for there in space.present]
        limit = 2 * passes.seconds(op for op in space.block.forward if not ops[op].updates)
        heap = [_Label(0.0, base[count], 0, count, 0)]
        history: list[tuple[Sequence[int], int]] = [((), -1)]
        lowest: dict[tuple[int, TensorSet], int] = {}
        found: list[_Label] = []
        while heap:
            label = heapq.heappop(heap)
            seconds, peak, number, k, there = label
            if peak >= lowest.get((k, there), peak + 1):
                continue
            lowest[k, there] = peak
            if k == 0:
                found.append(label)
            if len(history) > MOST_LABELS:
                logger.info("block at tensor %d: %d labels, the search ends", space.output, len(history))
                break
            if k:
                reads = space.unit_reads[k - 1]
                local, order = self._find_unit_peak(k - 1, there & reads)
                total = max(peak, local + self._size(there & ~reads))
                heapq.heappush(heap, _Label(seconds, total, len(history), k - 1, there | reads))
                history.append((space.units[k - 1][order], number))
            for n, remake in enumerate(space.remakes):
                if not remake.made & there or seconds + remake.seconds > limit:
                    continue
                touched = remake.made | remake.needs
                before = (there & ~remake.made) | remake.needs
                total = self._find_remake_peak(n, there & touched) + base[k] + self._size(there & ~touched)
                heapq.heappush(heap, _Label(seconds + remake.seconds, max(peak, total), len(history), k, before))
                history.append((remake.ops, number))
        return history, found

    def _write_schedule(self, history: Sequence[tuple[Sequence[int], int]], label: _Label) -> BlockSchedule:
        order: list[int] = []
        number = label.number
        while number >= 0:
            ops, number = history[number]
            order += ops
        space = self._space
        saved = frozenset((*self._list(label.there), *space.always_saved, space.output))
        return BlockSchedule(saved, tuple(order))
