"""Schedules of a block against every schedule there is, found without the search."""

from itertools import pairwise

import pytest

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.layers import (
    SGD,
    BatchNorm2d,
    Branches,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    Tanh,
    forward_graph,
    training_graph,
)
from bathyal.layers.graph import Phase
from bathyal.layers.merge import Concat
from bathyal.scheduler.blocks import schedules, search_space
from bathyal.scheduler.blocks.cut import split_blocks
from bathyal.scheduler.blocks.passes import PassCosts
from bathyal.scheduler.blocks.schedules import find_schedules
from bathyal.scheduler.blocks.search_space import MOST_DROPPABLE
from bathyal.scheduler.layout.kernels import Kernels, choose_least_workspace
from tests.support.random_networks import random_problem

END = (Conv2d(4, 3), Flatten(), Linear(3))
SMALL_BLOCKS = {
    "normalized twice": (Conv2d(4, 1), BatchNorm2d(), Tanh(), BatchNorm2d(), Sigmoid()),
    "dropout": (Conv2d(4, 1), Tanh(), Dropout(0.5), Sigmoid()),
    "shortcut": (Residual(Sequential(Conv2d(3, 3, padding=1), BatchNorm2d(), ReLU())), ReLU()),
    "two branches": (Branches(Sequential(Conv2d(4, 1), Tanh()), Sequential(Conv2d(2, 1), Sigmoid())), ReLU()),
}
REPEATS = 3


def first_block(*layers):
    graph = lower(training_graph(forward_graph(Sequential(*layers, *END), (2, 3, 6, 6)), SGD()), NullBackend())
    costs = estimate(graph, NullBackend())
    blocks = split_blocks(graph)
    passes = PassCosts(graph, costs, choose_least_workspace(costs, Kernels.FIXED))
    return blocks[0], blocks[1].input, blocks[1].gradient, passes


def measure(block, _output, incoming, passes, saved, order):
    """What the planner knows of a schedule: bytes held, seconds, and the peak of its backward pass."""
    there = [block.input, *sorted(saved), incoming]
    peak = passes.peak(order, there, [block.input, block.gradient])
    return passes.nbytes(saved), passes.seconds(order), peak


def every_schedule(block, output, _incoming, passes):
    """All sets, and all orders that put at most `REPEATS` forward operations between the backward ones."""
    ops = passes.graph.ops
    made = {t: op for op in block.forward for t in ops[op].outputs}
    repeatable = [op for op in block.forward if not ops[op].updates]
    kept = {t for t in made if t in passes.kept}
    candidates = sorted(block.saved - {output} - kept)
    for number in range(2 ** len(candidates)):
        saved = {output, *kept, *(t for i, t in enumerate(candidates) if number >> i & 1)}
        pending = [((), 0, frozenset(saved))]
        while pending:
            order, done, there = pending.pop()
            if done == len(block.backward):
                yield saved, order
                continue
            repeats = len(order) - done
            following = block.backward[done]
            if all(t in there or t not in made for t in ops[following].inputs):
                pending.append(((*order, following), done + 1, there))
            if repeats < REPEATS:
                for op in repeatable:
                    if op not in order[done + repeats - 1 :] and all(
                        t in there or t not in made for t in ops[op].inputs
                    ):
                        pending.append(((*order, op), done, there | set(ops[op].outputs)))


@pytest.mark.parametrize("name", SMALL_BLOCKS)
def test_nothing_is_better_than_what_is_found(name, monkeypatch):
    monkeypatch.setattr(search_space, "SMALL", 10**9)
    case = first_block(*SMALL_BLOCKS[name])
    found = {measure(*case, schedule.saved, schedule.backward) for schedule in find_schedules(*case)}
    assert len(found) > 1
    looked_at = 0
    for saved, order in every_schedule(*case):
        numbers = measure(*case, saved, order)
        looked_at += 1
        assert any(all(a <= b * (1 + 1e-12) for a, b in zip(other, numbers, strict=True)) for other in found), order
    assert looked_at > 100


def check_schedules(block, output, incoming, passes):
    ops = passes.graph.ops
    found = find_schedules(block, output, incoming, passes)
    assert any(
        sorted(schedule.backward) == sorted(block.backward) and schedule.saved == block.saved for schedule in found
    )
    for schedule in found:
        assert schedule.saved <= block.saved and output in schedule.saved
        assert sorted(op for op in schedule.backward if ops[op].phase is not Phase.FORWARD) == sorted(block.backward)
        there = {block.input, incoming, *schedule.saved} | passes.kept
        updated = set()
        for op in schedule.backward:
            for t in ops[op].inputs:
                assert t in there or t not in {t for o in (*block.forward, *block.backward) for t in ops[o].outputs}
                updater = next((o.id for o in ops if t in o.updates), op)
                assert t not in updated or updater <= op
            assert ops[op].phase is not Phase.FORWARD or not ops[op].updates
            there.update(ops[op].outputs)
            updated.update(ops[op].updates)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_schedules_have_all_operands_and_repeat_forward_operations_alone(seed):
    problem = random_problem(seed)
    passes = PassCosts(problem.graph, problem.costs, choose_least_workspace(problem.costs, Kernels.FIXED))
    blocks = split_blocks(problem.graph)
    for block, following in pairwise(blocks):
        check_schedules(block, following.input, following.gradient, passes)


def test_a_block_of_many_tensors_is_searched_in_part(caplog):
    branches = [Sequential(Conv2d(2, 1), BatchNorm2d(), Tanh(), Conv2d(2, 1), BatchNorm2d(), Tanh()) for _ in range(5)]
    case = first_block(Branches(*branches, merge=Concat()))
    with caplog.at_level("INFO"):
        found = check_schedules(*case)
    assert f"{MOST_DROPPABLE} of 20" in caplog.text
    least = min(schedule.saved for schedule in sorted(found, key=lambda schedule: len(schedule.saved)))
    assert len(case[0].saved) - len(least) <= MOST_DROPPABLE


def test_the_search_ends_at_a_number_of_labels(monkeypatch, caplog):
    monkeypatch.setattr(schedules, "MOST_LABELS", 20)
    case = first_block(*SMALL_BLOCKS["normalized twice"])
    with caplog.at_level("INFO"):
        check_schedules(*case)
    assert "the search ends" in caplog.text


def test_what_is_cheap_to_make_is_dropped_first():
    case = first_block(Conv2d(16, 5, padding=2), BatchNorm2d(), ReLU(), Dropout(0.2), Tanh())
    passes = case[-1]
    found = sorted(find_schedules(*case), key=lambda schedule: passes.seconds(schedule.backward))
    dropped = [
        {passes.graph.ops[op].kind for op in schedule.backward} & {"conv2d", "relu", "batch_norm_training"}
        for schedule in found
    ]
    assert dropped[0] == set()
    assert "conv2d" not in dropped[1] and dropped[1]
    assert "conv2d" in dropped[-1]
