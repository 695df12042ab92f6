"""Lower bounds against networks so small that the answer is known, and against plans of any kind."""

import pytest

from bathyal.layers.graph import Graph, Op, Phase, Role, Tensor
from bathyal.scheduler.bounds import knapsack_seconds
from bathyal.scheduler.costs import CostTable, KernelCost

F, B = Phase.FORWARD, Phase.BACKWARD


def step(*extra):
    """Images → a → b → c → logits, whose gradients read a, b and c: 4, 8 and 2 units of 64 bytes."""
    sizes = {"images": 3, "labels": 1, "weight": 5, "a": 4, "b": 8, "c": 2, "logits": 1}
    roles = {"images": Role.INPUT, "labels": Role.LABEL, "weight": Role.PARAMETER}
    names = [*sizes, "d logits", "d c", "d b", "d a", "other"]
    tensors = tuple(
        Tensor(n, name, (1,), "float32", roles.get(name, Role.ACTIVATION if name in sizes else Role.GRADIENT), nbytes)
        for n, (name, nbytes) in enumerate((name, 64 * sizes.get(name, 1)) for name in names)
    )
    rows = [
        (F, ["images", "weight"], ["a"], 8.0),
        (F, ["a"], ["b"], 1.0),
        (F, ["b"], ["c"], 6.0),
        (F, ["c"], ["logits"], 1.0),
        *extra,
        (B, ["logits", "labels"], ["d logits"], 1.0),
        (B, ["c", "d logits"], ["d c"], 1.0),
        (B, ["b", "d c"], ["d b"], 1.0),
        (B, ["a", "images", "d b"], ["d a"], 1.0),
    ]
    ops = tuple(
        Op(n, "relu", f"op{n}", tuple(map(names.index, reads)), tuple(map(names.index, makes)), phase=phase)
        for n, (phase, reads, makes, _) in enumerate(rows)
    )
    costs = CostTable(tuple((KernelCost("slow", 0, 9.0), KernelCost("fast", 64, row[3])) for row in rows))
    return Graph("by hand", tensors, ops, (), 4), costs


ONCE = 8 + 1 + 6 + 1 + 4
ALWAYS = 3 + 1 + 5  # images, labels and weight

# In order of seconds per unit: c (3), a (2), logits (1), b (1/8).
CASES = [
    (100, 0),
    (ALWAYS + 15, 0),
    (ALWAYS + 11, 0.5),
    (ALWAYS + 7, 1),
    (ALWAYS + 6, 2),
    (ALWAYS + 4, 6),
    (ALWAYS + 2, 10),
    (ALWAYS + 1, 13),
    (ALWAYS, 16),
    (0, 16),
]


@pytest.mark.parametrize(("units", "again"), CASES)
def test_what_must_run_again(units, again):
    graph, costs = step()
    assert knapsack_seconds(graph, costs, 64 * units) == pytest.approx(ONCE + again)


def test_a_forward_operation_that_the_loss_does_not_wait_for_may_run_late():
    """It need not be in memory when the gradient of the loss is computed, nor run twice."""
    graph, costs = step((F, ["b"], ["other"], 5.0))
    ops = [*graph.ops[:-1]]
    last = graph.ops[-1]
    ops.append(Op(last.id, last.kind, last.name, (*last.inputs, 11), last.outputs, phase=B))
    graph = Graph(graph.name, graph.tensors, tuple(ops), (), 4)
    assert knapsack_seconds(graph, costs, 0) == pytest.approx(ONCE + 5 + 16)


def test_what_only_an_operation_reads_that_does_not_wait_for_the_loss_need_not_be_held():
    """A conversion that serves the backward pass may run before the loss, and what it read may go."""
    graph, costs = step((B, ["b"], ["other"], 5.0))
    ops = list(graph.ops)
    number = next(op.id for op in ops if op.outputs == (9,))
    ops[number] = Op(number, "relu", "reads the converted", (11, 8), (9,), phase=B)
    graph = Graph(graph.name, graph.tensors, tuple(ops), (), 4)
    assert knapsack_seconds(graph, costs, 0) == pytest.approx(ONCE + 5 + 16 - 1)


def test_without_a_backward_pass_everything_runs_once():
    graph, costs = step()
    graph = Graph(graph.name, graph.tensors, graph.ops[:4], (), 4)
    assert knapsack_seconds(graph, costs, 0) == pytest.approx(16)
