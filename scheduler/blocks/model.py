"""From a training graph to the chain model of the optimal-checkpointing DP, and from its steps back to an order.

The numbers of a block come from the same lifetime rules as the final plan. The lifetimes of each of its passes are
found as if it ran alone, and what its peak has above the model's own terms is the pass's signed transient bytes. State,
labels, scalars, loss, and the batch statistics that are kept for the backward pass are no part of the chain; they are
counted by `count_background_bytes`. The schedules of a block are its options; those that another one beats in all its
numbers are left out. Blocks whose operations have the same signatures and the same wiring share their numbers, so each
kind of block is looked at once.

Source: Herrmann, Beaumont et al., "Optimal checkpointing for heterogeneous chains" (arXiv 1911.13214), section 3.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ...layers.graph import FED, STATE, Graph, Role
from ...memory.errors import unreachable
from ..chain.pareto import drop_dominated
from ..chain.types import (
    Backward,
    Chain,
    ChainBlock,
    ChainOption,
    ChainStep,
    ForwardCheckpoint,
    ForwardDiscard,
    ForwardSave,
)
from ..layout.kernels import KernelChoice
from ..layout.lifetimes import aligned_size
from ..plan.costs import CostTable
from ..plan.steps import NO_TENSOR
from .cut import BlockOps, describe_wiring, split_blocks
from .passes import PassCosts, find_kept_statistics
from .schedules import BlockSchedule, find_schedules


def count_background_bytes(graph: Graph) -> int:
    """Count the bytes that live beside the chain: all but images, activations and gradients."""
    kept = find_kept_statistics(graph)
    return sum(
        aligned_size(t)
        for t in graph.tensors
        if t.role in STATE or t.role is Role.METRIC or (t.role in FED and t.role is not Role.INPUT) or t.id in kept
    )


@dataclass(frozen=True, slots=True)
class ChainModel:
    """A training graph as a chain.

    Attributes:
        chain: the numbers of the blocks.
        blocks: the operations of each block.
        routes: for each block and option how its backward pass runs.
        choices: the choices of kernels that the options were priced with.
    """

    chain: Chain
    blocks: tuple[BlockOps, ...]
    routes: tuple[tuple[Route, ...], ...]
    choices: tuple[KernelChoice, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """How the backward pass of an option runs.

    Attributes:
        backward: its operations in order, with those of the forward pass that it repeats.
        kernels: index of its choice of kernels in `ChainModel.choices`.
    """

    backward: tuple[int, ...]
    kernels: int


def model_chain(graph: Graph, costs: CostTable, choices: Sequence[KernelChoice], *, search: bool = True) -> ChainModel:
    """Model a graph as a chain: find the schedules of every block and their numbers.

    Args:
        graph: lowered; its operations know their blocks.
        costs: kernels and seconds.
        choices: of kernels; every option takes one of them. They agree on the forward pass.
        search: whether other schedules are looked for than the one that saves all and repeats nothing.
    """
    passes = [PassCosts(graph, costs, choose) for choose in choices]
    blocks = split_blocks(graph)
    chain_blocks: list[ChainBlock] = []
    routes: list[tuple[Route, ...]] = []
    known: dict[Hashable, tuple[ChainBlock, list[Route]]] = {}
    for index, block in enumerate(blocks):
        last = index == len(blocks) - 1
        output, incoming = (NO_TENSOR, NO_TENSOR) if last else (blocks[index + 1].input, blocks[index + 1].gradient)
        ops = [*block.forward, *block.backward]
        key = _describe_block(graph, block, output, incoming, ops)
        if key not in known:
            numbers, found = _model_block(block, output, incoming, passes, last, search)
            place = {op: position for position, op in enumerate(ops)}
            known[key] = numbers, [Route(tuple(place[op] for op in route.backward), route.kernels) for route in found]
        numbers, places = known[key]
        chain_blocks.append(numbers)
        routes.append(tuple(Route(tuple(ops[p] for p in route.backward), route.kernels) for route in places))
    return ChainModel(Chain(tuple(chain_blocks)), blocks, tuple(routes), tuple(choices))


def _describe_block(graph: Graph, block: BlockOps, output: int, incoming: int, ops: Sequence[int]) -> Hashable:
    """Describe a block, so that the descriptions of blocks that differ in nothing but names are equal."""
    wires, numbers = describe_wiring(graph, ops)
    roles = tuple(graph.tensors[t].role for t in numbers)
    # What none of the operations touches is named, so that it is like nothing else.
    ends = tuple(
        t if t == NO_TENSOR else numbers.get(t, -2 - t) for t in (block.input, block.gradient, output, incoming)
    )
    sizes = tuple(graph.tensors[t].nbytes for t in (block.input, output) if t != NO_TENSOR)
    return len(block.forward), ends, sizes, roles, wires


def _model_block(
    block: BlockOps, output: int, incoming: int, passes: Sequence[PassCosts], last: bool, search: bool
) -> tuple[ChainBlock, list[Route]]:
    """Find the numbers of a block, and the route of each of its options."""
    entering, first = block.input, passes[0]
    a, a_next = first.nbytes([entering]), first.nbytes([output])
    d, d_next = first.nbytes([block.gradient]), first.nbytes([incoming])
    repeatable = [op for op in block.forward if not first.graph.ops[op].updates]
    plain = first.peak(repeatable, [entering], [entering, output]) - a - a_next
    forward_seconds = first.seconds(block.forward)
    options: dict[ChainOption, Route] = {}
    for number, kernels in enumerate(passes):
        if number and all(kernels.choose(op) == first.choose(op) for op in block.backward):
            continue
        schedules = [BlockSchedule(block.saved, block.backward)]
        if search and not last:
            schedules += find_schedules(block, output, incoming, kernels)
        for schedule in schedules:
            saved = sorted(schedule.saved)
            held = kernels.nbytes(saved)
            save = kernels.peak(block.forward, [entering], [entering, *saved]) - a - held
            back = kernels.peak(schedule.backward, [entering, *saved, incoming], [entering, block.gradient])
            transient = back - a - held - d - d_next
            option = ChainOption(held, forward_seconds, kernels.seconds(schedule.backward), save, transient)
            options.setdefault(option, Route(schedule.backward, number))
    kept = _choose_options(list(options), last)
    return ChainBlock(a, d, forward_seconds, plain, tuple(kept)), [options[option] for option in kept]


def _choose_options(options: Sequence[ChainOption], last: bool) -> list[ChainOption]:
    """Choose the options that no other beats in seconds, bytes held and what both passes need; fastest first.

    The loss has one option: the one that needs the least, as it has next to no seconds.
    """

    def costs(option: ChainOption) -> tuple[float, int, int, int]:
        return (
            option.backward_seconds,
            option.saved_bytes,
            option.saved_bytes + max(option.forward_transient_bytes, 0),
            option.saved_bytes + option.backward_transient_bytes,
        )

    found = drop_dominated(sorted(options, key=costs), costs)
    return found[-1:] if last else found


def expand(graph: Graph, model: ChainModel, steps: Iterable[ChainStep]) -> list[int]:
    """Write out the operations that steps of the chain stand for; running statistics are updated on the first pass."""
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
                order += model.routes[step.block][chosen.get(step.block, 0)].backward
            case _:
                unreachable(step)
    return order


def choose_kernels(model: ChainModel, steps: Iterable[ChainStep]) -> KernelChoice:
    """Choose the kernels that the options of the steps were priced with."""
    fast: set[int] = set()
    for step in steps:
        if isinstance(step, ForwardSave) and model.routes[step.block][step.option].kernels:
            fast.update(model.blocks[step.block].backward)
    return lambda op: model.choices[op in fast](op)
