"""What a block may save for its backward pass: an exact search for the sets and orders that are worth choosing from.

A way through a block is the set of tensors that its forward pass leaves, and an order of its backward pass in which
what is missing is made again where it is needed. The search goes backwards from the end of the backward pass over states
(backward operations done, tensors there) and finds all ways of which none is better in seconds and in bytes, for
all sets at once: a label is seconds from its state to the end, and the most bytes alive on the way. Two steps lead
to a state: the next group of backward operations, after which operands may be dropped, and making a tensor again from
others that are there. Dropping anywhere but at a use is never better.

Decided from: operations, sizes and seconds. Exact for blocks of at most `DROPPABLE` tensors of size that the backward
pass reads; of larger blocks only the tensors that free the most bytes for their seconds may be dropped. Within the group
that serves one forward operation the gradient of the weights comes before that of the data or after it. Repeating more
than twice what the forward pass costs is not looked at. Not checked: that the block's numbers describe a network.

Source: several options per block are Rockmate's (Zhao et al., 2023); dropping what is cheap to make is SuperNeurons'
(Wang et al., 2018, section 3.4).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...layers.graph import Role
from ..plan.steps import NO_TENSOR
from .cut import BlockOps
from .passes import Passes

logger = logging.getLogger(__name__)

DROPPABLE = 9
"""Tensors of one block that a way may drop; the search is exponential in them."""
SMALL = 16
"""What is smaller than the block's largest tensor by this factor is always saved."""
LABELS = 100_000
"""Where the search ends for lack of time; ways of few seconds come first."""


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """One way through a block.

    Attributes:
        saved: tensors that the forward pass leaves, the block's output included.
        backward: operations of the backward pass in order, repeated ones of the forward pass between them.
    """

    saved: frozenset[int]
    backward: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Remake:
    """Operations that make droppable tensors again from what is there.

    Attributes:
        ops: in the graph's order.
        made, needs: droppable tensors, as bits.
        others: tensors always saved that are read.
        seconds: of all operations.

    Parameters still have their old values wherever the tensors are wanted: the backward pass comes to what reads a tensor
    before it comes to what makes it.
    """

    ops: tuple[int, ...]
    made: int
    needs: int
    others: tuple[int, ...]
    seconds: float


def find_schedules(block: BlockOps, output: int, incoming: int, passes: Passes) -> list[BlockSchedule]:
    """All ways through a block that are worth looking at, the one that repeats nothing among them.

    Args:
        block: not the loss.
        output: the tensor that leaves the block.
        incoming: the gradient of `output`.
        passes: sizes, seconds and peaks.
    """
    return _Search(block, output, incoming, passes).ways()


class _Search:
    def __init__(self, block: BlockOps, output: int, incoming: int, passes: Passes) -> None:
        self._block, self._output, self._passes = block, output, passes
        ops = passes.graph.ops
        self._maker = {t: op for op in block.forward for t in ops[op].outputs}
        self._units = _units(block.backward, passes)
        self._droppable = self._choose_droppable()
        self._bit = {t: 1 << i for i, t in enumerate(self._droppable)}
        self._always = sorted(block.saved - set(self._droppable))
        self._reads = [{t for op in unit[0] for t in ops[op].inputs} for unit in self._units]
        self._read_bits = [self._bits(reads) for reads in self._reads]
        self._remakes = self._find_remakes()
        self._there = self._residents(incoming)
        self._base = [passes.nbytes([block.input, *there]) for there in self._there]
        self._bytes: dict[int, int] = {0: 0}
        self._peaks: dict[tuple[int, int, int], tuple[int, int]] = {}

    def _choose_droppable(self) -> list[int]:
        """Tensors that may be dropped, by what they free for the seconds that they take."""
        passes, saved = self._passes, self._block.saved - {self._output}
        sizes = {t: passes.nbytes([t]) for t in saved}
        least = max(sizes.values(), default=0) / SMALL
        rates = {}
        for t in sorted(saved):
            if sizes[t] > least:
                seconds = passes.seconds(self._closure(self._maker[t], saved | {self._output})[0])
                rates[t] = seconds / sizes[t]
        if len(rates) > DROPPABLE:
            logger.info("block at tensor %d: %d of %d tensors may be dropped", self._output, DROPPABLE, len(rates))
        return sorted(sorted(rates, key=lambda t: (rates[t], t))[:DROPPABLE])

    def _closure(self, op: int, stops: Iterable[int]) -> tuple[list[int], set[int]]:
        """Operations of the forward pass that make the outputs of `op` from `stops` and what is beside the block."""
        graph, stop = self._passes.graph, set(stops)
        needed, reads, pending = {op}, set(), [op]
        while pending:
            for t in graph.ops[pending.pop()].inputs:
                maker = self._maker.get(t)
                if t in stop:
                    reads.add(t)
                elif maker is not None and maker not in needed and t not in self._passes.kept:
                    needed.add(maker)
                    pending.append(maker)
        return sorted(needed), reads

    def _bits(self, tensors: Iterable[int]) -> int:
        found = 0
        for t in tensors:
            found |= self._bit.get(t, 0)
        return found

    def _find_remakes(self) -> list[_Remake]:
        ops = self._passes.graph.ops
        found = []
        for maker in sorted({self._maker[t] for t in self._droppable}):
            closure, reads = self._closure(maker, self._block.saved | {self._output})
            others = tuple(sorted(t for t in reads if t not in self._bit))
            made = self._bits(ops[maker].outputs)
            found.append(_Remake(tuple(closure), made, self._bits(reads), others, self._passes.seconds(closure)))
        return found

    def _residents(self, incoming: int) -> list[list[int]]:
        """For each position of the backward pass what is there besides droppable tensors and the block's input."""
        count = len(self._units)
        last = {t: k for k, reads in enumerate(self._reads) for t in reads}
        for remake in reversed(self._remakes):  # what a tensor is made from is needed as long as the tensor may be
            made = [t for t in self._droppable if self._bit[t] & remake.made]
            end = max(last.get(t, -1) for t in made)
            for t in (*remake.others, *(t for t in self._droppable if self._bit[t] & remake.needs)):
                last[t] = max(last.get(t, -1), end)
        ops = self._passes.graph.ops
        born = {t: k + 1 for k, unit in enumerate(self._units) for op in unit[0] for t in ops[op].outputs}
        born |= dict.fromkeys((t for t in (*self._always, incoming) if t != NO_TENSOR), 0)
        last[self._block.gradient] = count
        return [
            [t for t, begin in born.items() if begin <= k <= last.get(t, -1) and t not in self._bit]
            for k in range(count + 1)
        ]

    def _size(self, mask: int) -> int:
        if mask not in self._bytes:
            self._bytes[mask] = self._passes.nbytes(self._tensors(mask))
        return self._bytes[mask]

    def _tensors(self, mask: int) -> list[int]:
        return [t for t, bit in self._bit.items() if bit & mask]

    def _unit_peak(self, k: int, after: int) -> tuple[int, int]:
        """Peak of a unit, and which of its orders has it; of its droppable operands `after` stay."""
        key = (k, after, 0)
        if key not in self._peaks:
            x = self._block.input
            resident = [x, *self._tensors(self._read_bits[k]), *self._there[k]]
            final = [x, *self._tensors(after), *self._there[k + 1]]
            peaks = [self._passes.peak(order, resident, final) for order in self._units[k]]
            self._peaks[key] = min((peak, number) for number, peak in enumerate(peaks))
        return self._peaks[key]

    def _remake_peak(self, number: int, after: int) -> int:
        """Peak of making tensors again beside what else is there; `after` of its operands and outputs stay."""
        key = (number, after, 1)
        if key not in self._peaks:
            remake, x = self._remakes[number], self._block.input
            resident = [x, *remake.others, *self._tensors(remake.needs)]
            final = [x, *remake.others, *self._tensors(after)]
            peak = self._passes.peak(remake.ops, resident, final) - self._passes.nbytes([x, *remake.others])
            self._peaks[key] = (peak, 0)
        return self._peaks[key][0]

    def ways(self) -> list[BlockSchedule]:
        """The ways that no other beats in bytes held, in seconds, and in what its passes need."""
        history, labels = self._labels()
        forward = self._forward_peaks([mask for _, _, _, mask in labels])
        numbers = np.array(
            [
                [seconds, self._size(mask), need, peak]
                for (seconds, peak, _, mask), need in zip(labels, forward, strict=True)
            ]
        )
        kept: list[int] = []
        for i in range(len(labels)):
            if not (numbers[kept] <= numbers[i]).all(axis=1).any():
                kept.append(i)
        return [self._way(history, *labels[i][2:]) for i in kept]

    def _forward_peaks(self, masks: Sequence[int]) -> list[int]:
        """For each set what the forward pass needs that leaves it: what each tensor adds at each step is added up."""
        block, passes = self._block, self._passes
        kept = [block.input, *self._always, self._output]
        plain = passes.live_bytes(block.forward, [block.input], kept)
        added = {
            bit: passes.live_bytes(block.forward, [block.input], [*kept, t]) - plain for t, bit in self._bit.items()
        }
        return [int((plain + sum(more for bit, more in added.items() if bit & mask)).max()) for mask in masks]

    def _labels(self) -> tuple[list[tuple[Sequence[int], int]], list[tuple[float, int, int, int]]]:
        """Run the search: what each label does and which follows it; (seconds, peak, label, set) of all at the start."""
        count = len(self._units)
        limit = 2 * self._passes.seconds(op for op in self._block.forward if not self._passes.graph.ops[op].updates)
        heap: list[tuple[float, int, int, int, int]] = [(0.0, self._base[count], 0, count, 0)]
        history: list[tuple[Sequence[int], int]] = [((), -1)]  # what a label does, and the label that follows
        lowest: dict[tuple[int, int], int] = {}
        found: list[tuple[float, int, int, int]] = []
        while heap:
            seconds, peak, label, k, mask = heapq.heappop(heap)
            if peak >= lowest.get((k, mask), peak + 1):
                continue
            lowest[k, mask] = peak
            if k == 0:
                found.append((seconds, peak, label, mask))
            if len(history) > LABELS:
                logger.info("block at tensor %d: %d labels, the search ends", self._output, len(history))
                break
            if k:
                local, order = self._unit_peak(k - 1, mask & self._read_bits[k - 1])
                before = mask | self._read_bits[k - 1]
                total = max(peak, local + self._size(mask & ~self._read_bits[k - 1]))
                heapq.heappush(heap, (seconds, total, len(history), k - 1, before))
                history.append((self._units[k - 1][order], label))
            for number, remake in enumerate(self._remakes):
                if not remake.made & mask or seconds + remake.seconds > limit:
                    continue
                touched = remake.made | remake.needs
                before = (mask & ~remake.made) | remake.needs
                total = self._remake_peak(number, mask & touched) + self._base[k] + self._size(mask & ~touched)
                heapq.heappush(heap, (seconds + remake.seconds, max(peak, total), len(history), k, before))
                history.append((remake.ops, label))
        return history, found

    def _way(self, history: Sequence[tuple[Sequence[int], int]], label: int, mask: int) -> BlockSchedule:
        order: list[int] = []
        while label >= 0:
            ops, label = history[label]
            order += ops
        return BlockSchedule(frozenset((*self._tensors(mask), *self._always, self._output)), tuple(order))


def _units(backward: Sequence[int], passes: Passes) -> list[list[tuple[int, ...]]]:
    """Groups of backward operations that serve one forward operation, each with the orders that it may run in."""
    ops = passes.graph.ops
    groups: list[list[int]] = []
    for op in backward:
        if groups and ops[groups[-1][0]].forward_op == ops[op].forward_op:
            groups[-1].append(op)
        else:
            groups.append([op])
    return [_orders(group, passes) for group in groups]


def _orders(group: Sequence[int], passes: Passes) -> list[tuple[int, ...]]:
    """The group's own order, and those with the parameters' gradients first or last before the updates."""
    ops = passes.graph.ops
    updates = [op for op in group if ops[op].updates]
    wanted = {t for op in updates for t in ops[op].inputs if passes.graph.tensors[t].role is Role.GRADIENT}
    of_parameters: list[int] = []
    for op in reversed(group):
        if op not in updates and not wanted.isdisjoint(ops[op].outputs):
            of_parameters.insert(0, op)
            wanted.update(ops[op].inputs)
    rest = [op for op in group if op not in updates and op not in of_parameters]
    orders = [tuple(group)]
    for order in ((*of_parameters, *rest, *updates), (*rest, *of_parameters, *updates)):
        if order not in orders and _is_runnable(order, passes):
            orders.append(order)
    return orders


def _is_runnable(order: Sequence[int], passes: Passes) -> bool:
    ops = passes.graph.ops
    made = {t for op in order for t in ops[op].outputs}
    for op in order:
        if not made.isdisjoint(ops[op].inputs):
            return False
        made.difference_update(ops[op].outputs)
    return True
