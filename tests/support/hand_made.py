"""Graphs of a few operations, written down or drawn at random, and orders as a cache of bytes sees them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bathyal.layers.graph import Graph, Op, Phase, Role, Tensor
from bathyal.layers.kinds import KINDS
from bathyal.scheduler.layout.kernels import Kernels, choose_least_workspace
from bathyal.scheduler.layout.lifetimes import Lifetimes, find_lifetimes
from bathyal.scheduler.layout.moves import Order
from bathyal.scheduler.layout.placer import PlacedOrder, Placer
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.offload.cache import EvictionRule, Timing
from bathyal.scheduler.offload.recompute import write_recomputing_order
from bathyal.scheduler.offload.segments import find_cheap_segments
from bathyal.scheduler.offload.uses import UseTable
from bathyal.scheduler.plan.costs import CostTable, KernelCost
from bathyal.scheduler.plan.link import Link
from bathyal.scheduler.plan.state_layout import StateLayout
from bathyal.scheduler.plan.steps import Plan
from bathyal.scheduler.plan.verify import verify
from bathyal.scheduler.planner import write_plan
from bathyal.scheduler.strategies.names import parse_strategy
from bathyal.scheduler.strategies.offload import OffloadStrategy
from bathyal.scheduler.strategies.offload_candidates import Candidates

PAGE = 4096
Row = tuple[str, Sequence[int], Sequence[int]]
"""Kind, inputs and outputs of an operation."""


@dataclass(frozen=True)
class Cached:
    """An order, and what a cache and a link must know of it."""

    problem: Problem
    order: list[int]
    lifetimes: Lifetimes
    uses: UseTable
    timing: Timing


def make_case(problem: Problem, order: Sequence[int] | None = None) -> Cached:
    """An order of a problem with a link; by default the graph's own."""
    assert problem.costs.link is not None
    graph, order = problem.graph, [op.id for op in problem.graph.ops] if order is None else list(order)
    lifetimes = find_lifetimes(graph, order, choose_least_workspace(problem.costs, problem.kernels))
    seconds = [problem.costs.kernels[number][0].seconds for number in order]
    heavy = [KINDS[graph.ops[graph.ops[number].forward_op].kind].heavy for number in order]
    return Cached(problem, order, lifetimes, UseTable(graph, lifetimes), Timing(seconds, heavy, problem.costs.link))


def list_orders(problem: Problem) -> list[list[int]]:
    """The graph's own order, and all cheap operations repeated step by step, or segment by segment."""
    steps = find_cheap_segments(problem.graph)
    count = len(steps.segments)
    return [
        [op.id for op in problem.graph.ops],
        *(write_recomputing_order(steps, [once] * count) for once in (False, True)),
    ]


def hand_made(
    rows: Sequence[Row],
    nbytes: Sequence[int],
    seconds: Sequence[float],
    link: Link,
    outputs: Sequence[int] = (),
    backward: int | None = None,
    labels: int | None = None,
) -> Cached:
    """Operations on tensors of given bytes; what no operation makes is the host's.

    Args:
        rows: operations.
        nbytes: of each tensor.
        seconds: of each operation.
        link: to the memory outside.
        outputs: tensors that must be there at the end.
        backward: the first operation of the backward pass, where there is one.
        labels: the tensor of the labels, where there is one.
    """
    made, first = {t for _, _, makes in rows for t in makes}, {labels: Role.LABEL}
    tensors = tuple(
        Tensor(n, f"t{n}", (size // 4,), "float32", Role.ACTIVATION if n in made else first.get(n, Role.INPUT), size)
        for n, size in enumerate(nbytes)
    )
    turn = len(rows) if backward is None else backward
    phases = [Phase.FORWARD if n < turn else Phase.BACKWARD for n in range(len(rows))]
    ops = tuple(
        Op(n, kind, f"op{n}", tuple(reads), tuple(makes), phase=phases[n], forward_op=n)
        for n, (kind, reads, makes) in enumerate(rows)
    )
    costs = CostTable(tuple((KernelCost("only", 0, s),) for s in seconds), link)
    graph = Graph("by hand", tensors, ops, tuple(outputs), len(ops))
    return make_case(Problem(graph, costs, Kernels.FIXED, StateLayout({}, 0)))


MIXED = (64, 1024, PAGE, PAGE + 64, 2 * PAGE, 3 * PAGE - 128)


def draw_case(seed: int, operations: int, sizes: Sequence[int] = MIXED) -> Cached:
    """Operations at random, some in place; by default of less than a page to some pages."""
    rng = random.Random(seed)
    rows: list[Row] = []
    nbytes = [rng.choice(sizes)]
    for _ in range(operations):
        source = max(0, len(nbytes) - 1 - int(rng.expovariate(0.4)))
        if rng.random() < 0.3:
            rows.append(("relu", (source,), (len(nbytes),)))
            nbytes.append(nbytes[source])
        else:
            others = {rng.randrange(len(nbytes)) for _ in range(rng.randrange(3))}
            rows.append(("concat", tuple(sorted({source, *others})), (len(nbytes),)))
            nbytes.append(rng.choice(sizes))
    outputs = rng.sample(range(1, len(nbytes)), rng.randrange(3))
    seconds = [rng.choice((0.5, 1.0, 2.0)) for _ in rows]
    return hand_made(rows, nbytes, seconds, Link(*(PAGE * rng.choice((0.5, 1, 4)) for _ in range(2))), outputs)


def offload_case(case: Cached, budget_bytes: int, eviction: EvictionRule) -> Plan | None:
    """The plan of an order with the moves that `offload` puts into it, verified; None where nothing fits."""
    placer = Placer(case.problem, whole_step=False)
    strategy = OffloadStrategy(placer, parse_strategy("offload"))
    candidates = Candidates(placer, recomputation=None, streams=False, chain=None)
    candidate = candidates.make("by hand", case.order, placer.choose, case.problem.state)
    placed = strategy.place_candidate(candidate, eviction, budget_bytes)
    return None if placed is None else _verified(case, placed)


def planned(case: Cached, moved: Order) -> Plan:
    """The plan of an order with moves, placed and verified."""
    return _verified(case, Placer(case.problem, whole_step=False).place_order(moved))


def _verified(case: Cached, placed: PlacedOrder) -> Plan:
    problem = case.problem
    plan = write_plan(problem, "by hand", placed.end, placed, placed.end)
    verify(plan, problem.graph, problem.costs, problem.state)
    return plan
