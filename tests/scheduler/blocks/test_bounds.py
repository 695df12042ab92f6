"""Lower bounds against networks so small that the answer is known, and against plans of any kind."""

import random

import pytest

from bathyal.layers.graph import FED, STATE, Graph, Op, Phase, Role, Tensor
from bathyal.layers.kinds import KINDS
from bathyal.scheduler.blocks import bounds
from bathyal.scheduler.blocks.bounds import _bound_with_link, knapsack_seconds
from bathyal.scheduler.layout.lifetimes import aligned_size
from bathyal.scheduler.plan.costs import CostTable, KernelCost
from bathyal.scheduler.plan.link import Link
from tests.support.random_networks import random_problem

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

# What runs again (seconds) by what is held (units): logits 1, a 4, b 8, c 2 units; 1, 8, 1, 6 seconds. Without b,
# making c again takes a. The hull: nothing 16; c 10; c and logits 9; a and c with b made from a: 2; a, c, logits 1;
# all 0.
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


def must_run_again(graph, ops, held, wanted):
    """Which of `ops` run a second time where only `held` is in memory."""
    makers = {t: op for op in ops for t in graph.ops[op].outputs}
    again, pending = set(), [t for t in wanted if t in makers and t not in held]
    while pending:
        op = makers[pending.pop()]
        if op not in again:
            again.add(op)
            pending += [t for t in graph.ops[op].inputs if t in makers and t not in held]
    return again


@pytest.mark.parametrize("seed", range(12))
def test_no_set_of_one_block_is_cheaper_than_the_bound(seed):
    """All sets of all tensors, block by block, against the bound: no choice of one set a block beats it."""
    problem = random_problem(seed)
    graph, costs = problem.graph, problem.costs
    kept = {t for op in graph.ops for i in KINDS[op.kind].kept for t in op.outputs[i : i + 1]}
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD and not op.updates]
    later = {t for op in graph.ops if op.phase in (Phase.BACKWARD, Phase.UPDATE) for t in op.inputs}
    once = sum(costs.fastest_seconds(op.id) for op in graph.ops)
    beside = sum(aligned_size(t) for t in graph.tensors if t.role in STATE or t.id in kept)
    beside += sum(aligned_size(t) for t in graph.tensors if t.role in FED and t.id in later)
    rng = random.Random(seed)
    for _ in range(40):
        nbytes, seconds = beside, once
        for block in sorted({op.block for op in forward}):
            ops = [op.id for op in forward if op.block == block]
            made = [t for op in ops for t in graph.ops[op].outputs if t not in kept]
            held = {t for t in made if rng.random() < rng.choice((0.1, 0.5, 0.9))}
            nbytes += sum(aligned_size(graph.tensors[t]) for t in held)
            again = must_run_again(graph, ops, held | kept, later)
            seconds += sum(costs.fastest_seconds(op) for op in again)
        assert knapsack_seconds(graph, costs, nbytes) <= seconds * (1 + 1e-9)


def test_more_memory_never_raises_the_bound_and_enough_leaves_nothing_to_repeat():
    for seed in range(6):
        problem = random_problem(seed)
        most = 2 * sum(aligned_size(t) for t in problem.graph.tensors)
        found = [knapsack_seconds(problem.graph, problem.costs, most * n // 40) for n in range(41)]
        assert found == sorted(found, reverse=True)
        assert found[-1] == pytest.approx(sum(problem.costs.fastest_seconds(op.id) for op in problem.graph.ops))
        assert found[0] > found[-1]


def test_of_large_blocks_the_small_tensors_are_free(monkeypatch):
    problem = random_problem(3)
    budget = problem.state.nbytes
    whole = knapsack_seconds(problem.graph, problem.costs, budget)
    monkeypatch.setattr(bounds, "MOST_TENSORS", 2)
    assert knapsack_seconds(problem.graph, problem.costs, budget) < whole


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
    assert knapsack_seconds(graph, costs, 64 * (ALWAYS + 2)) == pytest.approx(ONCE + 5 + 8 + 1)  # c is held


def test_without_a_backward_pass_everything_runs_once():
    graph, costs = step()
    graph = Graph(graph.name, graph.tensors, graph.ops[:4], (), 4)
    assert knapsack_seconds(graph, costs, 0) == pytest.approx(16)


@pytest.mark.parametrize("seed", range(20))
def test_with_a_link_the_bound_is_the_least_over_all_that_may_be_outside(seed):
    """A scan over the bytes outside: whatever is there takes both transfers, and the computation what is not held."""
    rng = random.Random(seed)
    segments = sorted(((rng.uniform(1e-9, 1e-7), rng.randint(1, 10**7)) for _ in range(6)), reverse=True)
    whole, most = sum(nbytes for _, nbytes in segments), sum(saved * nbytes for saved, nbytes in segments)
    once, room = most * rng.uniform(0.5, 5), rng.randint(0, whole)
    link = Link(*(whole / (once + most) * 10 ** rng.uniform(-1, 1) for _ in range(2)))

    def seconds(moved):
        held, again = room + moved, most
        for saved, nbytes in segments:
            again -= saved * min(nbytes, max(held, 0))
            held -= nbytes
        return max(once + max(again, 0.0), link.out_seconds(moved) + link.in_seconds(moved))

    least = min(seconds(max(whole - room, 0) * k / 20_000) for k in range(20_001))
    found = _bound_with_link(once, most, segments, room, link)
    assert least * (1 - 1e-3) <= found <= least * (1 + 1e-9)
