"""From a graph to a chain of blocks: cut where a single tensor crosses.

A cut is made before a convolution or matrix product where exactly one activation goes from the operations before to
those after, so that each block holds at least one heavy operation and the cheap ones that follow it. Operations that
share a parameter share a block too: its gradient is summed over all of them.

Where two tensors cross to the heavy operation, one may cross a little earlier: what goes around a unit with the
activation first crosses alone before the batch norm. Such cuts are made only where a block would otherwise be too large
for the exact search of its schedules. A smaller block is left whole: the search knows more ways through it than a chain
of its parts, which keeps what enters a part until the backward pass of that part is over, as what enters the inner half
of a U-Net, although nothing there may read it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ...layers.graph import NO_OP, Graph, Op, Phase, Role
from ...layers.kinds import KINDS
from ..plan.steps import NO_TENSOR

MOST_DROPPABLE = 9
"""Tensors of one block that a schedule may drop; the search is exponential in them."""
SMALL = 16
"""A tensor that is smaller than the block's largest tensor by this factor is always saved."""


def assign_blocks(graph: Graph) -> Graph:
    """Give every operation the index of its block; the loss, and what follows it directly, is the last block."""
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    cuts = _find_cuts(graph, forward)
    block_of: dict[int, int] = {}
    block = 0
    for position, op in enumerate(forward):
        block += position in cuts
        block_of[op.id] = block
    last = block + 1 if forward else 0
    return replace(graph, ops=tuple([_set_block(op, block_of.get(op.forward_op, last)) for op in graph.ops]))


def _set_block(op: Op, block: int) -> Op:
    """Copy an operation with another block, as `replace(op, block=block)` does but in a third of the time.

    Deep networks have ten thousands of operations.
    """
    fields = op.id, op.kind, op.name, op.inputs, op.outputs, op.attrs, op.updates, op.phase, op.forward_op
    return Op(*fields, block)


def _find_cuts(graph: Graph, forward: Sequence[Op]) -> set[int]:
    """Find the positions of the forward operations that begin a block, but for the first block."""
    sure, possible = _list_cuts(graph, forward)
    if not possible:
        return set(sure)
    saved = _list_saved(graph, forward)
    cuts = set(sure)
    for begin, end in pairwise([0, *sure, len(forward)]):
        inside = possible[bisect_right(possible, begin) : bisect_left(possible, end)]
        if inside and _count_droppable(saved[begin:end]) > MOST_DROPPABLE:
            cuts.update(inside)
    return cuts


def _list_cuts(graph: Graph, forward: Sequence[Op]) -> tuple[list[int], list[int]]:
    """List the last position between each heavy operation and the next to which a single tensor crosses.

    Returns:
        The positions right before the heavy operation, and the earlier ones.
    """
    crossing = _count_crossings(graph, forward)
    sure: list[int] = []
    possible: list[int] = []
    last, first, heavy = NO_OP, 0, False
    for position, op in enumerate(forward):
        # A conversion belongs to the operation that it is made for: its backward pass converts the same tensor.
        if position == 0 or not KINDS[forward[position - 1].kind].converts:
            first = position
            if crossing[position] == 1:
                last = position
        if KINDS[op.kind].heavy:
            if heavy and last != NO_OP:
                (sure if last == first else possible).append(last)
            last, heavy = NO_OP, True
    return sure, possible


def _list_saved(graph: Graph, forward: Sequence[Op]) -> list[list[int]]:
    """List for each forward operation the bytes of those of its outputs that a schedule saves or drops."""
    wanted = {t for op in graph.ops if op.phase is not Phase.FORWARD for t in op.inputs}
    found = []
    for op in forward:
        kept = KINDS[op.kind].kept
        found.append([graph.tensors[t].nbytes for i, t in enumerate(op.outputs) if t in wanted and i not in kept])
    return found


def _count_droppable(saved: Sequence[Sequence[int]]) -> int:
    """Count the tensors of a block that are not small, of the bytes that `_list_saved` lists."""
    sizes = [nbytes for of_one in saved for nbytes in of_one]
    least = max(sizes, default=0) / SMALL
    return sum(nbytes > least for nbytes in sizes)


def _count_crossings(graph: Graph, forward: Sequence[Op]) -> list[int]:
    """Count for each forward operation the tensors that cross to it: those made before it and read by it or later.

    Images count as made before the first operation, and parameters where they are first read. The backward pass of an
    operation reads where the operation stands.
    """
    place = {op.id: position for position, op in enumerate(forward)}
    last_read: dict[int, int] = {}
    for op in graph.ops:
        position = place.get(op.forward_op, len(forward))
        for t in op.inputs:
            if position > last_read.get(t, -1):
                last_read[t] = position
    alive = {t.id for t in graph.tensors if t.role is Role.INPUT and t.id in last_read}
    found = []
    for position, op in enumerate(forward):
        alive = {t for t in alive if last_read[t] >= position}
        found.append(len(alive))
        alive |= {t for t in op.outputs if t in last_read}
        alive |= {t for t in op.inputs if graph.tensors[t].role is Role.PARAMETER}
    return found


def describe_wiring(graph: Graph, ops: Iterable[int]) -> tuple[Hashable, dict[int, int]]:
    """Describe what operations do and which tensors connect them; equal for lists that differ in nothing but names.

    Returns:
        Signatures with numbers of tensors, and the number of each tensor.
    """
    numbers: dict[int, int] = {}
    wires = []
    for op in map(graph.ops.__getitem__, ops):
        tensors = tuple(numbers.setdefault(t, len(numbers)) for t in (*op.inputs, *op.outputs))
        wires.append((graph.signature(op), tensors))
    return tuple(wires), numbers


@dataclass(frozen=True, slots=True)
class BlockOps:
    """The operations of one block, in graph order.

    Attributes:
        forward: all of the forward pass, updates of running statistics included.
        backward: gradients and updates; for the loss block the loss too.
        input: the tensor that enters the block.
        gradient: the gradient of `input` that the block makes, or `NO_TENSOR` for images.
        saved: the tensors that the forward operations make and the backward operations read, and the block's output.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    input: int
    gradient: int
    saved: frozenset[int]


def split_blocks(graph: Graph) -> tuple[BlockOps, ...]:
    """List the blocks of a training graph whose operations know their blocks; the last block is the loss."""
    count = max(op.block for op in graph.ops) + 1
    forward: list[list[int]] = [[] for _ in range(count)]
    backward: list[list[int]] = [[] for _ in range(count)]
    saved: list[set[int]] = [set() for _ in range(count)]
    entering = [t.id for t in graph.with_role(Role.INPUT)] * count
    gradients = [NO_TENSOR] * count
    made_in: dict[int, int] = {}
    for op in graph.ops:
        in_forward = op.phase is Phase.FORWARD
        (forward if in_forward else backward)[op.block].append(op.id)
        for t in op.inputs:
            role, home = graph.tensors[t].role, made_in.get(t, op.block)
            if role is Role.ACTIVATION and home != op.block and (in_forward or op.phase is Phase.LOSS):
                entering[op.block] = t
                saved[home].add(t)
            elif role is Role.ACTIVATION and made_in.get(t) == op.block and not in_forward:
                saved[home].add(t)
            elif role is Role.GRADIENT and home != op.block:
                gradients[home] = t
        for t in op.outputs:
            if in_forward or graph.tensors[t].role is Role.GRADIENT:  # a conversion in the backward pass saves nothing
                made_in[t] = op.block
    return tuple(
        BlockOps(tuple(forward[i]), tuple(backward[i]), entering[i], gradients[i], frozenset(saved[i]))
        for i in range(count)
    )
