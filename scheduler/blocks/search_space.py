"""What the search for the schedules of a block starts from: what may be dropped, how it is made again, what is there.

Decided from a block's operations, their seconds and the sizes of tensors. Not checked: that the block's numbers
describe a network.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ..plan.steps import NO_TENSOR
from .cut import MOST_DROPPABLE, SMALL, BlockOps
from .passes import PassCosts
from .units import group_by_forward

logger = logging.getLogger(__name__)

TensorSet: TypeAlias = int
"""A set of droppable tensors as a number with one binary digit for each: the search compares and joins millions."""


@dataclass(frozen=True, slots=True)
class Remake:
    """Operations that make droppable tensors again from what is there.

    Parameters still have their old values wherever the tensors are wanted: the backward pass comes to what reads a
    tensor before it comes to what makes it.

    Attributes:
        ops: in the graph's order.
        made: the droppable tensors that they make.
        needs: the droppable tensors that they read.
        others: the tensors always saved that they read.
        seconds: of all operations.
    """

    ops: tuple[int, ...]
    made: TensorSet
    needs: TensorSet
    others: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What the search knows of a block.

    Attributes:
        block: the block's operations.
        output: the tensor that leaves the block.
        units: for each unit of the backward pass the orders that it may run in.
        unit_reads: for each unit the droppable tensors that it reads.
        digits: for each droppable tensor the set of it alone.
        always_saved: tensors that no schedule drops, without the output.
        remakes: for each droppable tensor what makes it.
        present: for each position of the backward pass, before unit k and at the end, the tensors that are there
            besides droppable ones and the block's input.
    """

    block: BlockOps
    output: int
    units: list[list[tuple[int, ...]]]
    unit_reads: list[TensorSet]
    digits: dict[int, TensorSet]
    always_saved: list[int]
    remakes: list[Remake]
    present: list[list[int]]


def describe_search_space(block: BlockOps, output: int, incoming: int, passes: PassCosts) -> SearchSpace:
    """Find out what of a block may be dropped and what must be there when.

    Args:
        block: any block but the loss.
        output: the tensor that leaves the block.
        incoming: the gradient of `output`.
        passes: sizes, seconds and peaks.
    """
    ops = passes.graph.ops
    makers = {t: op for op in block.forward for t in ops[op].outputs}
    droppable = _choose_droppable(block, output, passes, makers)
    digits = {t: 2**place for place, t in enumerate(droppable)}
    units = group_by_forward(passes.graph, block.backward)
    reads = [{t for op in unit[0] for t in ops[op].inputs} for unit in units]
    always_saved = sorted(block.saved - set(droppable))
    remakes = _find_remakes(block, output, passes, makers, digits)
    present = _find_present(block, incoming, passes, units, reads, always_saved, remakes, digits)
    unit_reads = [_join(digits, tensors) for tensors in reads]
    return SearchSpace(block, output, units, unit_reads, digits, always_saved, remakes, present)


def _choose_droppable(block: BlockOps, output: int, passes: PassCosts, makers: dict[int, int]) -> list[int]:
    """Choose the tensors that may be dropped: those that take the fewest seconds for the bytes that they free."""
    saved = block.saved - {output}
    sizes = {t: passes.nbytes([t]) for t in saved}
    least = max(sizes.values(), default=0) / SMALL
    rates = {}
    for t in sorted(saved):
        if sizes[t] > least:
            seconds = passes.seconds(_find_closure(makers[t], saved | {output}, passes, makers)[0])
            rates[t] = seconds / sizes[t]
    if len(rates) > MOST_DROPPABLE:
        logger.info("block at tensor %d: %d of %d tensors may be dropped", output, MOST_DROPPABLE, len(rates))
    return sorted(sorted(rates, key=lambda t: (rates[t], t))[:MOST_DROPPABLE])


def _find_closure(
    op: int, stops: Iterable[int], passes: PassCosts, makers: dict[int, int]
) -> tuple[list[int], set[int]]:
    """Find the forward operations that make the outputs of `op` from `stops` and what is beside the block.

    Returns:
        The operations in the graph's order, and those of `stops` that they read.
    """
    graph, stop = passes.graph, set(stops)
    needed, reads, pending = {op}, set(), [op]
    while pending:
        for t in graph.ops[pending.pop()].inputs:
            maker = makers.get(t)
            if t in stop:
                reads.add(t)
            elif maker is not None and maker not in needed and t not in passes.kept:
                needed.add(maker)
                pending.append(maker)
    return sorted(needed), reads


def _join(digits: dict[int, TensorSet], tensors: Iterable[int]) -> TensorSet:
    """The set of those of the tensors that are droppable."""
    found = 0
    for t in tensors:
        found |= digits.get(t, 0)
    return found


def _find_remakes(
    block: BlockOps, output: int, passes: PassCosts, makers: dict[int, int], digits: dict[int, TensorSet]
) -> list[Remake]:
    found = []
    for maker in sorted({makers[t] for t in digits}):
        closure, reads = _find_closure(maker, block.saved | {output}, passes, makers)
        others = tuple(sorted(t for t in reads if t not in digits))
        made = _join(digits, passes.graph.ops[maker].outputs)
        found.append(Remake(tuple(closure), made, _join(digits, reads), others, passes.seconds(closure)))
    return found


def _find_present(
    block: BlockOps,
    incoming: int,
    passes: PassCosts,
    units: list[list[tuple[int, ...]]],
    reads: list[set[int]],
    always_saved: list[int],
    remakes: list[Remake],
    digits: dict[int, TensorSet],
) -> list[list[int]]:
    """Find `SearchSpace.present`."""
    count = len(units)
    last_read = {t: k for k, tensors in enumerate(reads) for t in tensors}
    for remake in reversed(remakes):  # what a tensor is made from is needed as long as the tensor may be
        end = max(last_read.get(t, -1) for t, digit in digits.items() if digit & remake.made)
        for t in (*remake.others, *(t for t, digit in digits.items() if digit & remake.needs)):
            last_read[t] = max(last_read.get(t, -1), end)
    ops = passes.graph.ops
    born = {t: k + 1 for k, unit in enumerate(units) for op in unit[0] for t in ops[op].outputs}
    born |= dict.fromkeys((t for t in (*always_saved, incoming) if t != NO_TENSOR), 0)
    last_read[block.gradient] = count
    return [
        [t for t, begin in born.items() if begin <= k <= last_read.get(t, -1) and t not in digits]
        for k in range(count + 1)
    ]
