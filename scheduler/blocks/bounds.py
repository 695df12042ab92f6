"""A certified lower bound on the time of a step within a budget, for every plan of a graph.

Every operation runs once. At the moment when the gradient of the loss is computed, the forward operations that lead to
it have run, and none of those that depend on it has. Whatever the latter read is in memory then, or is made again
later, by an operation whose inputs are in memory then or are made again too. The forward pass is cut into its blocks.
Within a block, every set of tensors that may be held is looked at, with the operations that must run again beside it;
tensors of other blocks are assumed to be there and to take no memory. Choosing one set for each block is a
multiple-choice knapsack, and its linear relaxation, over the lower convex hull of each block's sets, is the bound. It
holds for plans that store a tensor for a while only, and for orders that no strategy here would try. With a link, what
is held may be outside at that moment; it left before and comes back after, so the step takes no less than both
transfers, one after the other.

Of a block with more than `MOST_TENSORS` tensors, the smaller ones are assumed to be there and to take no memory; the
bound then holds too, but is lower.

Source: the bound is ours; the greedy solution of the relaxation is Zemel's (1980).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from ...layers.graph import FED, STATE, Graph, Op, Phase, Role
from ..chain.hull import Hull, HullEdge, find_lower_hull
from ..layout.lifetimes import aligned_size
from ..plan.costs import CostTable
from ..plan.link import Link
from .cut import describe_wiring
from .passes import find_kept_statistics

MOST_TENSORS = 14
"""The tensors of one block whose sets are all looked at: 2 to the power of this many."""

_HALVINGS = 50
"""How often the interval is halved in which the bytes moved over a link are searched."""


def knapsack_seconds(graph: Graph, costs: CostTable, budget_bytes: int) -> float:
    """The seconds that no plan of the graph within the budget can go below.

    Without a link in the cost table, the bound holds for plans that move nothing out of the arena.
    """
    once = sum(costs.fastest_seconds(op.id) for op in graph.ops)
    before, wanted = _split_at_gradient(graph)
    kept = find_kept_statistics(graph).intersection(t for number in before for t in graph.ops[number].outputs)
    never_again = kept & wanted
    room = budget_bytes
    for tensor in graph.tensors:
        fed = tensor.role in FED and tensor.id in wanted
        # With a link, state may be anywhere at that moment, and nothing says that it moves twice.
        is_held = tensor.role in STATE and costs.link is None
        if is_held or fed or tensor.id in never_again:
            room -= aligned_size(tensor)
    blocks: dict[int, list[int]] = defaultdict(list)
    for number in sorted(before):
        blocks[graph.ops[number].block].append(number)
    hulls: dict[Hashable, Hull] = {}
    rerun = 0.0
    edges: list[HullEdge] = []
    for ops in blocks.values():
        wires, numbers = describe_wiring(graph, ops)
        key = wires, tuple(t in wanted for t in numbers)
        if key not in hulls:
            hulls[key] = _find_hull(graph, costs, ops, wanted, kept)
        nothing_held, steps = hulls[key]
        rerun += nothing_held
        edges += steps
    edges.sort(reverse=True)
    if costs.link is None:
        return once + _rerun_seconds(rerun, edges, room)
    return _bound_with_link(once, rerun, edges, room, costs.link)


def _rerun_seconds(seconds: float, edges: Sequence[HullEdge], room: float) -> float:
    """The least seconds that operations run again where `room` bytes may be held; `seconds` where none may."""
    for saved_per_byte, nbytes in edges:
        held = min(nbytes, max(room, 0))
        room -= held
        seconds -= saved_per_byte * held
    return max(seconds, 0.0)


def _bound_with_link(once: float, rerun: float, edges: Sequence[HullEdge], room: int, link: Link) -> float:
    """The least seconds of a step over all numbers of bytes that may be outside when the loss's gradient is computed.

    Those bytes left before and come back after, so the step takes no less than both transfers, one after the other. It
    also takes no less than the computation with what is held in the arena and outside.
    """
    low, high = 0.0, float(max(sum(nbytes for _, nbytes in edges) - room, 0))
    for _ in range(_HALVINGS):
        moved = (low + high) / 2
        if link.out_seconds(moved) + link.in_seconds(moved) < once + _rerun_seconds(rerun, edges, room + moved):
            low = moved
        else:
            high = moved
    # At `low` the transfers take less than the computation, which only falls with more that is moved.
    return max(once + _rerun_seconds(rerun, edges, room + high), link.out_seconds(low) + link.in_seconds(low))


def _find_hull(graph: Graph, costs: CostTable, ops: Sequence[int], wanted: set[int], kept: frozenset[int]) -> Hull:
    """Find the hull of (bytes held, seconds that run again) over the sets of tensors that a block may hold."""
    made = [t for op in ops for t in graph.ops[op].outputs if t not in kept]
    sizes = {t: aligned_size(graph.tensors[t]) for t in made}
    looked_at = sorted((t for t in made if sizes[t]), key=lambda t: (-sizes[t], t))[:MOST_TENSORS]
    # Set number n holds the tensor at place k of `looked_at` if digit k of n, written in binary, is 1.
    sets = np.arange(2 ** len(looked_at))
    held = {t: sets // 2**place % 2 == 1 for place, t in enumerate(looked_at)}
    nbytes = sum((held[t] * sizes[t] for t in looked_at), np.zeros(len(sets), np.int64))
    missing = {t: ~held[t] if t in wanted else np.zeros(len(sets), bool) for t in looked_at}
    seconds = np.zeros(len(sets))
    for number in reversed(ops):
        op = graph.ops[number]
        runs = np.zeros(len(sets), bool)
        for t in op.outputs:
            if t in missing:
                runs |= missing[t]
        seconds += runs * costs.fastest_seconds(number)
        for t in op.inputs:
            if t in missing:
                missing[t] |= runs & ~held[t]
    return find_lower_hull(nbytes.tolist(), seconds.tolist())


def _begins_backward(graph: Graph, op: Op) -> bool:
    """Whether a backward operation makes a gradient and reads none, as that of the loss does and no later one."""
    made, read = ({graph.tensors[t].role for t in ids} for ids in (op.outputs, op.inputs))
    return Role.GRADIENT in made and Role.GRADIENT not in read


def _split_at_gradient(graph: Graph) -> tuple[list[int], set[int]]:
    """Find the forward operations that lead to the gradient of the loss, and the tensors that it or later ones read."""
    backward = [op for op in graph.ops if op.phase is Phase.BACKWARD]
    first = next((op for op in backward if _begins_backward(graph, op)), None)
    if first is None:
        return [], set()
    wanted, after = set(first.inputs), set(first.outputs)
    for op in graph.ops:
        if not after.isdisjoint(op.inputs):
            wanted.update(op.inputs)
            after.update(op.outputs)
    needed, before = set(first.inputs), []
    for op in reversed(graph.ops):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            if op.phase is Phase.FORWARD:
                before.append(op.id)
    return before, wanted
