"""Certified lower bounds on the time of a step within a budget."""

from __future__ import annotations

from ..layers.graph import FED, STATE, Graph, Phase, Role
from .costs import CostTable
from .draft import aligned_size


def knapsack_seconds(graph: Graph, costs: CostTable, budget_bytes: int) -> float:
    """No plan without transfers is faster, persistent or not.

    Every operation runs once. When the gradient of the loss is computed, the forward operations that lead to it have
    run, and none of the operations that depend on it has; so each of the former whose outputs one of the latter reads
    either has those bytes in memory or runs again later. Choosing what to hold is a knapsack; its linear relaxation is
    a lower bound. State and fed tensors take their share of the budget first, as they are there at that time (of the
    fed ones only those that are read later).
    """
    once = sum(costs.fastest_seconds(op.id) for op in graph.ops)
    before, wanted = _around_the_gradient(graph)
    room = budget_bytes
    for tensor in graph.tensors:
        if tensor.role in STATE or (tensor.role in FED and tensor.id in wanted):
            room -= aligned_size(tensor)
    held: list[tuple[float, int, float]] = []
    for number in before:
        nbytes = sum(aligned_size(graph.tensors[t]) for t in graph.ops[number].outputs if t in wanted)
        if nbytes:
            seconds = costs.fastest_seconds(number)
            held.append((seconds / nbytes, nbytes, seconds))
    again = 0.0
    for rate, nbytes, seconds in sorted(held, reverse=True):
        kept = min(nbytes, max(room, 0))
        room -= kept
        again += seconds if kept == 0 else rate * (nbytes - kept)
    return once + again


def _around_the_gradient(graph: Graph) -> tuple[list[int], set[int]]:
    """The forward operations that lead to the gradient of the loss, and the tensors that are read by it or after it."""
    backward = [op for op in graph.ops if op.phase is Phase.BACKWARD]
    first = next((op for op in backward if any(graph.tensors[t].role is Role.LABEL for t in op.inputs)), None)
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
