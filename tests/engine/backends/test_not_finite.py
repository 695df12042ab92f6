"""A NaN in any input of any operation is in what the operation makes, on every backend that computes on a processor."""

import numpy as np
import pytest

from bathyal.engine.backends.onednn.recipes import RECIPES
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.planning.lowering import lower
from bathyal.layers import (
    SGD,
    Add,
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    Identity,
    Linear,
    MaxPool2d,
    ReLU,
    Residual,
    Sequential,
    evaluation_graph,
    forward_graph,
    prediction_graph,
    training_graph,
)
from bathyal.layers.graph import Phase, Role
from bathyal.layers.kinds import KINDS
from tests.support.every_layer import everything
from tests.support.lowered_graphs import Memory, first_values
from tests.support.onednn_library import onednn_backend

CLASSES = 12
SHAPE = (3, 5, 16, 16)
END = (Flatten(), Linear(CLASSES))
NETWORKS = {
    "every kind of layer": everything(),
    "blocked": Sequential(
        Conv2d(20, 3, padding=1),
        ReLU(),
        Conv2d(20, 1),
        MaxPool2d(3, 2, 1),
        Conv2d(20, 1),
        BatchNorm2d(),
        ReLU(),
        Residual(Sequential(Conv2d(20, 1), BatchNorm2d()), activation=ReLU()),
        Residual(Conv2d(20, 1), activation=ReLU()),
        AvgPool2d(2),
        GlobalAvgPool2d(),
        *END,
    ),
    "plain": Sequential(
        MaxPool2d(2, 1),
        Residual(ReLU(), activation=ReLU()),
        BatchNorm2d(),
        ReLU(),
        Branches(Identity(), BatchNorm2d(), merge=Add()),
        *END,
        ReLU(),
        Linear(CLASSES),
    ),
}
MIXING = ("batch_norm_training", "batch_norm_relu")
"""Forward operations of one image's numbers that depend on those of the others."""
MODES = {
    "training": lambda forward: training_graph(forward, SGD(0.05, momentum=0.9, weight_decay=1e-3)),
    "evaluation": evaluation_graph,
    "prediction": prediction_graph,
}


def prepare(network, mode, backend):
    """A lowered graph with first values of all that no operation makes."""
    plain = MODES[mode](forward_graph(NETWORKS[network], SHAPE))
    graph = lower(plain, backend)
    memory = Memory(graph, backend)
    rng = np.random.default_rng(1)
    feeds = {
        "images": rng.standard_normal(SHAPE).astype(np.float32),
        "labels": rng.integers(0, CLASSES, SHAPE[0]),
        "scalars": np.array([0.05, 1.0]),
        "random_key": np.array([11, 2], np.int64),
    }
    for tensor in graph.tensors:
        values = first_values(tensor, feeds, 3)
        if values is not None:
            memory.write(tensor.id, values)
    return graph, memory


def spoil(values, op, place):
    """Put a NaN into an operand, at a place where its value counts."""
    spoiled = values.copy()
    if KINDS[op.kind].random or (op.phase is Phase.BACKWARD and "relu" in op.kind):
        spoiled[:] = np.nan  # what is dropped, or cut off by a ReLU, counts nowhere
    else:
        spoiled.reshape(-1)[place] = np.nan
    return spoiled


def read(memory, tensor):
    """Plain values; what pads a layout may hold a NaN as well, once an image does."""
    return memory.backend.decode(memory.graph.tensors[tensor], memory.content(tensor))


def count(memory, graph, tensors):
    """In how many of some tensors there is a NaN."""
    return sum(np.isnan(read(memory, t)).any() for t in tensors if graph.tensors[t].dtype == "float32")


def check_operation(memory, graph, op):
    """Spoil each input of an operation that has run, at its first, a middle and its last place, and run it again."""
    operands = {t: memory.content(t).copy() for t in (*op.inputs, *op.outputs)}
    made = (*op.outputs, *op.updates)
    assert not count(memory, graph, made)
    for position, t in enumerate(op.inputs):
        tensor = graph.tensors[t]
        if tensor.dtype != "float32" or (op.kind == "relu_backward" and position == 0):
            continue  # of a NaN that a ReLU has handed on PyTorch too hands the gradient on
        memory.content(t)[:] = operands[t]
        values = memory.read(t)
        for place in {0, values.size // 2, values.size - 1}:
            for other, content in operands.items():
                memory.content(other)[:] = content
            memory.write(t, spoil(values, op, place))
            memory.run(op)
            what = f"{op.name} ({op.kind}), input {position} {tensor.name}, place {place}"
            assert count(memory, graph, made) >= 1, what
            if op.phase is Phase.FORWARD and op.outputs and tensor.role is Role.ACTIVATION and op.kind not in MIXING:
                image = read(memory, op.outputs[0])[place * SHAPE[0] // values.size]
                assert np.isnan(image).any(), f"{what}: in another image"
    for other, content in operands.items():
        memory.content(other)[:] = content


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("backend", ["reference", "onednn"])
def test_every_operation_hands_a_nan_on(backend, network, mode):
    graph, memory = prepare(network, mode, ReferenceBackend() if backend == "reference" else onednn_backend())
    for op in graph.ops:
        memory.run(op)
        check_operation(memory, graph, op)


def test_all_kinds_that_the_library_computes_are_looked_at():
    backend = onednn_backend()
    graphs = [make(forward_graph(n, SHAPE)) for n in NETWORKS.values() for make in MODES.values()]
    kinds = {op.kind for graph in graphs for op in lower(graph, backend).ops}
    assert set(RECIPES) <= kinds
    plain = {op.kind for graph in graphs for op in graph.ops}
    forward = {op.kind for op in forward_graph(everything(), SHAPE).ops}
    assert {kind for kind in forward if KINDS[kind].needs_kernels} <= plain
