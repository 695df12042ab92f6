"""Certified lower bounds on the time of a step within a budget."""

from __future__ import annotations

from ..layers.graph import FED, STATE, Graph, Phase
from .costs import CostTable
from .draft import aligned_size


def knapsack_seconds(graph: Graph, costs: CostTable, budget_bytes: int) -> float:
    """No plan without transfers is faster, persistent or not.

    Every operation runs once. When the gradient of the loss is computed, the forward operations that lead to it have
    run and no other backward operation has; so each of them whose outputs some backward operation reads either has
    those bytes in memory or runs again later. Choosing what to hold is a knapsack; its linear relaxation is a lower
    bound. State and fed tensors take their share of the budget first, as they are there at that time (of the fed ones
    only those that a backward operation reads).
    """
    once = sum(costs.fastest_seconds(op.id) for op in graph.ops)
    wanted = {t for op in graph.ops if op.phase not in (Phase.FORWARD, Phase.LOSS) for t in op.inputs}
    room = budget_bytes
    for tensor in graph.tensors:
        if tensor.role in STATE or (tensor.role in FED and tensor.id in wanted):
            room -= aligned_size(tensor)
    held: list[tuple[float, int, float]] = []
    for op in graph.ops:
        if op.phase is not Phase.FORWARD:
            continue
        nbytes = sum(aligned_size(graph.tensors[t]) for t in op.outputs if t in wanted)
        if nbytes:
            seconds = costs.fastest_seconds(op.id)
            held.append((seconds / nbytes, nbytes, seconds))
    again = 0.0
    for rate, nbytes, seconds in sorted(held, reverse=True):
        kept = min(nbytes, max(room, 0))
        room -= kept
        again += seconds if kept == 0 else rate * (nbytes - kept)
    return once + again
