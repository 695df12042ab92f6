"""The backward pass of a block in units: groups of operations that serve one forward operation, and their orders.

Within a unit the gradient of the parameters may come before that of the data or after it; both orders are listed, as
their peaks differ. Nothing else is reordered.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...layers.graph import Graph, Role


def group_by_forward(graph: Graph, backward: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """Group backward operations by the forward operation that they serve, each group as a list of its orders.

    Args:
        graph: lowered.
        backward: operations of a backward pass in order; those of one forward operation are neighbours.
    """
    groups: list[list[int]] = []
    for op in backward:
        if groups and graph.ops[groups[-1][0]].forward_op == graph.ops[op].forward_op:
            groups[-1].append(op)
        else:
            groups.append([op])
    return [_list_orders(graph, group) for group in groups]


def _list_orders(graph: Graph, group: Sequence[int]) -> list[tuple[int, ...]]:
    """List the group's own order, and those with the parameters' gradients first or last before the updates."""
    ops = graph.ops
    updates = [op for op in group if ops[op].updates]
    wanted = {t for op in updates for t in ops[op].inputs if graph.tensors[t].role is Role.GRADIENT}
    of_parameters: list[int] = []
    for op in reversed(group):
        if op not in updates and not wanted.isdisjoint(ops[op].outputs):
            of_parameters.insert(0, op)
            wanted.update(ops[op].inputs)
    rest = [op for op in group if op not in updates and op not in of_parameters]
    orders = [tuple(group)]
    for order in ((*of_parameters, *rest, *updates), (*rest, *of_parameters, *updates)):
        if order not in orders and _is_runnable(graph, order):
            orders.append(order)
    return orders


def _is_runnable(graph: Graph, order: Sequence[int]) -> bool:
    """Whether no operation reads what a later one of the order makes."""
    made = {t for op in order for t in graph.ops[op].outputs}
    for op in order:
        if not made.isdisjoint(graph.ops[op].inputs):
            return False
        made.difference_update(graph.ops[op].outputs)
    return True
