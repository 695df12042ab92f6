"""From a training graph to the chain model of the optimal-checkpointing DP, and from its steps back to an order.

The numbers of a block come from the same lifetime rules as the final plan: each of its passes is drafted on its own,
and what its peak has above the model's own terms is the pass's signed transient bytes. State, labels, scalars, loss,
and the batch statistics that are kept for the backward pass live outside the model, in `background_bytes`. The ways
through a block are its options; those that another one beats in all its numbers are left out. Blocks whose operations
have the same signatures and the same wiring share their numbers: each kind of block is looked at once.

Source: Herrmann, Beaumont et al., "Optimal checkpointing for heterogeneous chains" (arXiv 1911.13214), section 3.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ..layers.graph import FED, STATE, Graph, Role
from ..memory.errors import unreachable
from .blocks import BlockOps, split_blocks
from .chain_dp import Backward, Block, Chain, ForwardCheckpoint, ForwardDiscard, ForwardSave, Option, Step
from .costs import CostTable
from .draft import aligned_size
from .kernels import Choice
from .options import Way, find_ways
from .passes import Passes, kept_statistics
from .plan import NO_TENSOR


def background_bytes(graph: Graph) -> int:
    """Bytes that live beside the chain: all but images, activations and gradients."""
    kept = kept_statistics(graph)
    return sum(
        aligned_size(t)
        for t in graph.tensors
        if t.role in STATE or t.role is Role.METRIC or (t.role in FED and t.role is not Role.INPUT) or t.id in kept
    )


@dataclass(frozen=True, slots=True)
class ChainModel:
    """A graph as a chain.

    Attributes:
        chain: the numbers.
        blocks: the operations of each block.
        orders: for each block and option, the backward pass with what it repeats.
    """

    chain: Chain
    blocks: tuple[BlockOps, ...]
    orders: tuple[tuple[tuple[int, ...], ...], ...]


def chain_model(graph: Graph, costs: CostTable, choose: Choice) -> ChainModel:
    """The numbers of every block and the ways through it."""
    passes = Passes(graph, costs, choose)
    blocks = split_blocks(graph)
    rows: list[Block] = []
    orders: list[tuple[tuple[int, ...], ...]] = []
    known: dict[Hashable, tuple[Block, list[tuple[int, ...]]]] = {}
    for index, block in enumerate(blocks):
        last = index == len(blocks) - 1
        output, incoming = (NO_TENSOR, NO_TENSOR) if last else (blocks[index + 1].input, blocks[index + 1].gradient)
        ops = [*block.forward, *block.backward]
        key = _wiring(graph, block, output, incoming, ops)
        if key not in known:
            row, found = _describe(block, output, incoming, passes, last)
            place = {op: position for position, op in enumerate(ops)}
            known[key] = row, [tuple(place[op] for op in order) for order in found]
        row, places = known[key]
        rows.append(row)
        orders.append(tuple(tuple(ops[p] for p in order) for order in places))
    return ChainModel(Chain(tuple(rows)), blocks, tuple(orders))


def _wiring(graph: Graph, block: BlockOps, output: int, incoming: int, ops: Sequence[int]) -> Hashable:
    """Equal for blocks that differ in nothing but names."""
    local: dict[int, int] = {NO_TENSOR: NO_TENSOR}
    wires = []
    for op in map(graph.ops.__getitem__, ops):
        tensors = (*op.inputs, *op.outputs)
        roles = tuple(graph.tensors[t].role for t in tensors)
        wires.append((graph.signature(op), roles, tuple(local.setdefault(t, len(local)) for t in tensors)))
    ends = tuple(local.setdefault(t, len(local)) for t in (block.input, block.gradient, output, incoming))
    sizes = tuple(graph.tensors[t].nbytes for t in (block.input, output) if t != NO_TENSOR)
    return len(block.forward), ends, sizes, tuple(wires)


def _describe(
    block: BlockOps, output: int, incoming: int, passes: Passes, last: bool
) -> tuple[Block, list[tuple[int, ...]]]:
    """The numbers of a block, and the order of the backward pass of each of its options."""
    entering = block.input
    a, a_next = passes.nbytes([entering]), passes.nbytes([output])
    d, d_next = passes.nbytes([block.gradient]), passes.nbytes([incoming])
    repeatable = [op for op in block.forward if not passes.graph.ops[op].updates]
    plain = passes.peak(repeatable, [entering], [entering, output]) - a - a_next
    forward_seconds = passes.seconds(block.forward)
    ways = [Way(block.saved, block.backward)]
    if not last:
        ways += find_ways(block, output, incoming, passes)
    options: dict[Option, tuple[int, ...]] = {}
    for way in ways:
        saved = sorted(way.saved)
        held = passes.nbytes(saved)
        save = passes.peak(block.forward, [entering], [entering, *saved]) - a - held
        back = passes.peak(way.backward, [entering, *saved, incoming], [entering, block.gradient])
        transient = back - a - held - d - d_next
        option = Option(held, forward_seconds, passes.seconds(way.backward), save, transient)
        options.setdefault(option, way.backward)
    kept = _worth_having(list(options))
    return Block(a, d, forward_seconds, plain, tuple(kept)), [options[option] for option in kept]


def _worth_having(options: Sequence[Option]) -> list[Option]:
    """Options that no other beats in seconds, in what it holds, and in what both its passes need; fastest first."""

    def numbers(o: Option) -> tuple[float, int, int, int]:
        return (
            o.backward_seconds,
            o.saved_bytes,
            o.saved_bytes + max(o.forward_transient_bytes, 0),
            o.saved_bytes + o.backward_transient_bytes,
        )

    found: list[Option] = []
    for option in sorted(options, key=numbers):
        mine = numbers(option)
        if not any(all(a <= b for a, b in zip(numbers(other), mine, strict=True)) for other in found):
            found.append(option)
    return found


def expand(graph: Graph, model: ChainModel, steps: Iterable[Step]) -> list[int]:
    """The order of operations that steps of the chain stand for; running statistics are updated on the first pass."""
    order: list[int] = []
    chosen: dict[int, int] = {}
    seen: set[int] = set()
    for step in steps:
        match step:
            case ForwardDiscard() | ForwardCheckpoint() | ForwardSave():
                forward = model.blocks[step.block].forward
                order += [op for op in forward if step.block not in seen or not graph.ops[op].updates]
                seen.add(step.block)
                if isinstance(step, ForwardSave):
                    chosen[step.block] = step.option
            case Backward():
                order += model.orders[step.block][chosen.get(step.block, 0)]
            case _:
                unreachable(step)
    return order
