"""ReLU behind max pooling: only where nothing else reads it, and the same result to the bit."""

import numpy as np
import pytest

from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.executor import Executor
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.engine.state import State
from bathyal.layers import (
    SGD,
    Branches,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    Identity,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    forward_graph,
    training_graph,
)
from bathyal.layers.pool_first import pool_first
from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import make_plan

SHAPE = (3, 3, 12, 12)
END = (GlobalAvgPool2d(), Flatten(), Linear(5))


def kinds(graph):
    return [op.kind for op in graph.ops if op.kind in ("relu", "max_pool", "conv2d")]


def graph_of(*layers):
    return forward_graph(Sequential(*layers, *END), SHAPE)


def test_a_relu_moves_behind_all_poolings_that_follow():
    graph = pool_first(graph_of(Conv2d(4, 3), ReLU(), MaxPool2d(2), MaxPool2d(2), Conv2d(4, 1)))
    assert kinds(graph) == ["conv2d", "max_pool", "max_pool", "relu", "conv2d"]
    assert [op.id for op in graph.ops] == [op.forward_op for op in graph.ops] == list(range(len(graph.ops)))
    relu = next(op for op in graph.ops if op.kind == "relu")
    assert graph.tensors[relu.inputs[0]].spec == graph.tensors[relu.outputs[0]].spec
    assert graph.tensors[relu.outputs[0]].nbytes == graph.tensors[relu.outputs[0]].spec.nbytes
    (last,) = (op for op in graph.ops if op.kind == "conv2d" and op.id > relu.id)
    assert last.inputs[0] == relu.outputs[0]


@pytest.mark.parametrize(
    "layers",
    [
        (Conv2d(4, 3), ReLU(), Branches(MaxPool2d(3, 1, 1), Identity()), Conv2d(4, 1)),
        (Conv2d(4, 3), ReLU(), Branches(MaxPool2d(3, 1, 1), Conv2d(4, 1)), Conv2d(4, 1)),
        (Conv2d(4, 3), ReLU(), Conv2d(4, 1), MaxPool2d(2)),
    ],
)
def test_a_relu_that_something_else_reads_stays(layers):
    graph = graph_of(*layers)
    assert pool_first(graph) == graph


def test_an_output_of_the_network_stays_its_output():
    graph = forward_graph(Sequential(Conv2d(4, 3), ReLU(), MaxPool2d(2)), SHAPE)
    moved = pool_first(graph)
    last = moved.ops[-1]
    assert last.kind == "relu" and moved.outputs == last.outputs
    assert moved.tensors[moved.outputs[0]].shape == graph.tensors[graph.outputs[0]].shape


@pytest.mark.parametrize("window", [(2,), (3, 2, 1), (3, 1, 1), (3, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradients_keep_their_bits(window, seed, monkeypatch):
    network = Sequential(Conv2d(6, 3, padding=1), ReLU(), MaxPool2d(*window), Conv2d(5, 1), ReLU(), *END)

    def step():
        backend = ReferenceBackend()
        graph = lower(training_graph(forward_graph(network, SHAPE), SGD(0.5, momentum=0.9)), backend)
        problem = Problem(graph, estimate(graph, backend), Kernels.FIXED, lay_out_state(graph))
        plan = make_plan(problem, "liveness", 2**30)
        with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
            state = State(graph, problem.state, backend, device)
            state.initialize(seed)
            executor = Executor(plan, graph, backend, device)
            executor.bind()
            rng = np.random.default_rng(seed)
            images = np.maximum(rng.normal(size=SHAPE), -0.5).astype(np.float32)  # many equal values
            key, scalars = np.array([0, 0], np.int64), np.array([0.5, 1.0])
            feeds = {"images": images, "labels": rng.integers(0, 5, 3), "scalars": scalars, "random_key": key}
            losses = [float(executor.run(feeds)["loss"][0]) for _ in range(3)]
            return losses, kinds(graph), state.weights_sha256(), make_plan(problem, "keep", 2**30).peak_bytes

    moved = step()
    monkeypatch.setattr("bathyal.layers.modes.pool_first", lambda graph: graph)
    plain = step()
    assert moved[1] != plain[1]
    assert moved[0] == plain[0]
    assert moved[2] == plain[2]
    assert moved[3] < plain[3] or window == (3, 1, 1)  # which makes nothing smaller


def test_many_in_a_row_all_end_up_behind():
    pairs = [layer for _ in range(300) for layer in (ReLU(), MaxPool2d(3, 1, 1))]
    graph = pool_first(graph_of(Conv2d(4, 3), *pairs, ReLU(), Conv2d(4, 1)))
    assert kinds(graph) == ["conv2d", *["max_pool"] * 300, *["relu"] * 301, "conv2d"]
