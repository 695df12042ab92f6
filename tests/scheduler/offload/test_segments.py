"""Runs of cheap operations: which there are, how often each mode computes them again, and in how much memory."""

from collections import Counter
from functools import cache

import pytest

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.lowering import lower
from bathyal.layers import SGD, forward_graph, training_graph
from bathyal.layers.graph import FED, STATE, Phase
from bathyal.layers.kinds import KINDS
from bathyal.models.registry import build_model
from bathyal.scheduler.layout.lifetimes import find_lifetimes
from bathyal.scheduler.offload.recompute import write_recomputing_order
from bathyal.scheduler.offload.segments import find_affordable, find_cheap_segments, take_first_segments
from tests.support.random_networks import natural_order, random_problem

SEEDS = range(12)


@cache
def paper(name):
    """The network as in the paper, for two images: sizes do not matter to counts."""
    forward = forward_graph(build_model(name, classes=1000, variant="paper"), (2, 3, 227, 227))
    return lower(training_graph(forward, SGD(0.1, momentum=0.9)), NullBackend())


def no_workspace(op):
    return 0, 0


def order_of(graph, at_once, limit=None):
    """All segments at once, all step by step, or those at once that stay within a limit."""
    steps = find_cheap_segments(graph)
    order = write_recomputing_order(steps, [at_once] * len(steps.segments))
    if limit is None:
        return order
    return write_recomputing_order(steps, find_affordable(find_lifetimes(graph, order, no_workspace), steps, limit, ()))


def most_bytes(graph, order):
    """The most of the operands of a step and of cheap values: everything else may be elsewhere between its uses."""
    steps = find_cheap_segments(graph)
    cheap = {t for run in steps.segments for op in run for t in steps.makes[op]}
    lifetimes, most = find_lifetimes(graph, order, no_workspace), 0
    for position, step in enumerate(lifetimes.steps):
        there = {*step.inputs, *step.outputs}
        for i, t in enumerate(lifetimes.tensor):
            if t in cheap and lifetimes.birth[i] <= position <= lifetimes.death[i]:
                there.add(i)
        most = max(most, sum(lifetimes.nbytes[i] for i in there))
    return most


def repeated(graph, order):
    return len(order) - len(graph.ops)


def test_the_segments_of_alexnet():
    graph = paper("alexnet")
    runs = [tuple(graph.ops[op].kind for op in run) for run in find_cheap_segments(graph).segments]
    assert runs == [
        ("relu", "lrn", "max_pool"),
        ("relu", "lrn", "max_pool"),
        ("relu",),
        ("relu",),
        ("max_pool", "relu", "flatten"),
        ("relu", "dropout_training"),
        ("relu", "dropout_training"),
    ]


@pytest.mark.parametrize(("name", "speed", "memory", "cost"), [("alexnet", 15, 22, 18), ("resnet50", 85, 88, 85)])
def test_how_many_operations_run_again(name, speed, memory, cost):
    """Beside the paper's 14, 23 and 17 for AlexNet, 84, 118 and 85 for ResNet-50 (`test_accounting` has those).

    One more at once: our graph has a flatten, which the paper has not. Fewer step by step: in the paper the backward
    steps of ReLU, LRN and pooling read input and output. Ours read one of them, or the places of the maxima, and that
    of batch norm needs no output of its own: a ReLU whose output was computed for the convolution after it
    needs nothing more.
    """
    graph = paper(name)
    least = most_bytes(graph, order_of(graph, at_once=False))
    assert repeated(graph, order_of(graph, at_once=True)) == speed
    assert repeated(graph, order_of(graph, at_once=False)) == memory
    assert repeated(graph, order_of(graph, at_once=True, limit=least)) == cost


def graphs():
    return [random_problem(seed).graph for seed in SEEDS]


def test_less_is_computed_again_where_more_memory_is_taken():
    differ = 0
    for graph in [*graphs(), paper("alexnet")]:
        speed, memory = order_of(graph, at_once=True), order_of(graph, at_once=False)
        fewest = most_bytes(graph, memory)
        aware = order_of(graph, at_once=True, limit=fewest)
        assert fewest <= most_bytes(graph, aware) <= most_bytes(graph, speed)
        assert repeated(graph, speed) <= repeated(graph, aware) <= repeated(graph, memory)
        differ += repeated(graph, speed) < repeated(graph, memory)
    assert differ > 0


def test_cost_aware_stays_within_the_limit_wherever_that_can_be():
    for graph in [*graphs(), paper("alexnet")]:
        least = most_bytes(graph, order_of(graph, at_once=False))
        most = most_bytes(graph, order_of(graph, at_once=True))
        for limit in (least, (least + most) // 2, most):
            assert most_bytes(graph, order_of(graph, at_once=True, limit=limit)) <= limit


def test_without_a_limit_all_is_done_at_once_and_with_none_left_nothing():
    for graph in graphs():
        assert order_of(graph, at_once=True, limit=2**60) == order_of(graph, at_once=True)
        assert order_of(graph, at_once=True, limit=0) == order_of(graph, at_once=False)


def test_a_segment_is_a_run_of_cheap_operations_in_which_each_reads_the_one_before():
    for graph in [*graphs(), paper("alexnet"), paper("resnet50")]:
        steps = find_cheap_segments(graph)
        numbers = [op for run in steps.segments for op in run]
        assert len(numbers) == len(set(numbers))
        for run in steps.segments:
            for before, op in zip((None, *run), run, strict=False):
                found = graph.ops[op]
                assert not KINDS[found.kind].heavy
                assert found.phase is Phase.FORWARD
                read = {t for t in found.inputs if graph.tensors[t].role not in STATE | FED}
                assert len(read) == 1
                assert before is None or read <= set(graph.ops[before].outputs)
        first = take_first_segments(steps, 2)
        assert first.segments == steps.segments[:2]
        assert (first.forward, first.backward) == (steps.forward, steps.backward)


@pytest.mark.parametrize("at_once", [True, False])
def test_statistics_are_updated_once_and_stay_those_of_the_first_run(at_once):
    """What repeats a batch norm reads its first mean and variance; the update of the running ones is never repeated."""
    norms = 0
    for graph in [*graphs(), paper("resnet50")]:
        order = order_of(graph, at_once)
        runs = Counter(order)
        assert set(runs) == set(natural_order(graph))
        assert all(runs[op.id] == 1 for op in graph.ops if op.updates or op.phase is not Phase.FORWARD)
        first = {}
        for step in find_lifetimes(graph, order, no_workspace).steps:
            for index in KINDS[graph.ops[step.op].kind].kept:
                assert first.setdefault((step.op, index), step.outputs[index]) == step.outputs[index]
                norms += step.recompute
    assert norms > 20
