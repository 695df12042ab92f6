"""The chain that a graph is cut into, against the graph itself."""

import pytest

from bathyal.layers import SGD, Conv2d, Flatten, Linear, Residual, Sequential, forward_graph, training_graph
from bathyal.layers.graph import Phase, Role
from bathyal.layers.kinds import KINDS
from bathyal.scheduler.blocks.cut import assign_blocks
from bathyal.scheduler.blocks.model import count_background_bytes, expand, model_chain
from bathyal.scheduler.blocks.passes import find_kept_statistics
from bathyal.scheduler.chain.least_memory import find_minimum_plan
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.solve import solve
from bathyal.scheduler.layout.kernels import Kernels, choose_least_workspace
from bathyal.scheduler.layout.lifetimes import drop_dead_recomputations, find_lifetimes
from tests.support.random_networks import random_problem

SEEDS = range(30)


def parts(seed):
    problem = random_problem(seed)
    choose = choose_least_workspace(problem.costs, Kernels.FIXED)
    return problem, choose, model_chain(problem.graph, problem.costs, [choose])


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_hold_every_operation_once_and_are_entered_by_one_tensor(seed):
    problem, _, model = parts(seed)
    graph, blocks = problem.graph, model.blocks
    assert sorted(op for b in blocks for op in (*b.forward, *b.backward)) == [op.id for op in graph.ops]
    assert not blocks[-1].forward
    for block in blocks[:-1]:
        assert any(KINDS[graph.ops[op].kind].heavy for op in block.forward)
    home = {t: op.block for op in graph.ops for t in op.outputs}
    for op in graph.ops:
        if op.phase in (Phase.FORWARD, Phase.LOSS):
            crossing = {t for t in op.inputs if graph.tensors[t].role is Role.ACTIVATION and home[t] != op.block}
            assert crossing <= {blocks[op.block].input}
        assert op.block == home.get(next(iter(op.outputs), -1), op.block)
        if op.phase is Phase.BACKWARD and op.kind != "softmax_cross_entropy_backward":
            assert op.block == graph.ops[op.forward_op].block


@pytest.mark.parametrize("seed", SEEDS)
def test_the_model_never_promises_less_than_the_plan_needs(seed):
    problem, choose, model = parts(seed)
    graph, chain = problem.graph, model.chain
    least = find_minimum_plan(chain)
    least_peak, _ = simulate_chain(chain, least)
    proposals = [least]
    for factor in (1.0, 1.2, 1.5, 2.0, 4.0):
        solution = solve(chain, int(least_peak * factor))
        if solution is not None:
            proposals.append(solution.steps)
    assert len(proposals) > 1
    for steps in proposals:
        peak, seconds = simulate_chain(chain, steps)
        order = expand(graph, model, steps)
        lifetimes = find_lifetimes(graph, order, choose)
        assert int(lifetimes.live_bytes().max()) <= peak + count_background_bytes(graph)
        actual = sum(problem.costs.kernels[op][choose(op)[0]].seconds for op in order)
        assert actual <= seconds * (1 + 1e-9)
        pruned = drop_dead_recomputations(graph, order)
        assert int(find_lifetimes(graph, pruned, choose).live_bytes().max()) <= peak + count_background_bytes(graph)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_generous_budget_recomputes_nothing(seed):
    problem, _, model = parts(seed)
    solution = solve(model.chain, 2**40)
    assert solution is not None
    assert sorted(expand(problem.graph, model, solution.steps)) == [op.id for op in problem.graph.ops]


@pytest.mark.parametrize("seed", SEEDS)
def test_batch_statistics_are_made_once(seed):
    problem, choose, model = parts(seed)
    kept = find_kept_statistics(problem.graph)
    lifetimes = find_lifetimes(problem.graph, expand(problem.graph, model, find_minimum_plan(model.chain)), choose)
    made = [t for t in lifetimes.tensor if t in kept]
    assert len(made) == len(set(made)) == len(kept)
    updates = [step.op for step in lifetimes.steps if problem.graph.ops[step.op].updates]
    assert len(updates) == len(set(updates))


def test_images_that_are_read_again_cross_a_cut():
    body = Sequential(Conv2d(3, 3, padding=1), Conv2d(3, 3, padding=1), Conv2d(3, 3, padding=1))
    network = Sequential(Residual(body), Conv2d(4, 1), Flatten(), Linear(5))
    graph = assign_blocks(training_graph(forward_graph(network, (2, 3, 4, 4)), SGD()))
    assert [op.block for op in graph.ops if op.kind == "conv2d"] == [0, 0, 0, 1]


def test_dead_recomputations_are_left_out_and_only_those():
    for seed in SEEDS:
        problem, choose, model = parts(seed)
        order = expand(problem.graph, model, find_minimum_plan(model.chain))
        pruned = drop_dead_recomputations(problem.graph, order)
        assert drop_dead_recomputations(problem.graph, pruned) == pruned
        lifetimes = find_lifetimes(problem.graph, pruned, choose)
        for position, step in enumerate(lifetimes.steps):
            if step.recompute:
                fresh = [n for n in step.outputs if lifetimes.birth[n] == position]
                assert any(lifetimes.death[n] > position for n in fresh)
