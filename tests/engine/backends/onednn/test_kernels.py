"""Every kernel that oneDNN offers for every convolution of every bundled network, against the reference backend.

Channels, kernels and strides are those of the networks; images are small, so that only channels and windows matter.
"""

from dataclasses import replace

import numpy as np
import pytest

from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.planning.lowering import lower
from bathyal.layers import SGD, Flatten, Linear, Sequential, forward_graph, training_graph
from bathyal.layers.convolution import Conv2d
from bathyal.layers.graph import Graph
from bathyal.models.registry import MODELS, build_model
from tests.support.lowered_graphs import TOLERANCE, Memory
from tests.support.onednn_library import onednn_backend
from tests.support.operation_harness import relative_distance

BACKEND = onednn_backend()
REFERENCE = ReferenceBackend()
CONVOLUTIONS = ("conv2d", "conv2d_backward_data", "conv2d_backward_weights")
# The deepest two repeat the blocks of a network of four.
NAMES = {"resnet1001": "resnet:2,2,2,2", "resnet2500": "resnet:2,2,2,2"}


def alone(graph, op, plain=False):
    """A graph of one operation; with plain layouts for the reference backend."""
    ids = list(dict.fromkeys((*op.inputs, *op.outputs)))
    tensors = [replace(graph.tensors[t], id=i) for i, t in enumerate(ids)]
    if plain:
        tensors = [replace(t, layout="", nbytes=t.spec.nbytes) for t in tensors]
    inputs, outputs = (tuple(ids.index(t) for t in group) for group in (op.inputs, op.outputs))
    # In a layout with more rows a gradient has less padding than the convolution.
    attrs = graph.ops[op.forward_op].attrs if plain else op.attrs
    single = replace(op, id=0, inputs=inputs, outputs=outputs, attrs=attrs, forward_op=0)
    return Graph(op.name, tuple(tensors), (single,), outputs, 1)


def lowered_convolutions(name, variant, seen):
    """One-operation graphs of the convolutions that no network before had."""
    entry = MODELS[name]
    shape = (2, entry.channels, *(entry.smallest_image,) * 2)
    network = build_model(NAMES.get(name, name), classes=10, variant=variant)
    graph = lower(training_graph(forward_graph(network, shape), SGD()), BACKEND)
    for op in graph.ops:
        signature = graph.signature(op)
        if op.kind in CONVOLUTIONS and signature not in seen:
            seen.add(signature)
            yield alone(graph, op), alone(graph, op, plain=True)


def check_every_kernel(graph, plain):
    """Returns the names of the kernels that were compared."""
    op, rng = graph.ops[0], np.random.default_rng(7)
    values = {t: rng.standard_normal(graph.tensors[t].shape).astype(np.float32) for t in op.inputs}
    expected = Memory(plain, REFERENCE)
    for t, v in values.items():
        expected.write(t, v)
    expected.run(plain.ops[0])
    kernels = BACKEND.kernels(graph, op)
    memory = Memory(graph, BACKEND)
    for index, kernel in enumerate(kernels):
        for t in op.outputs:
            memory.content(t)[:] = 0xFF
        for t, v in values.items():
            memory.write(t, v)
        memory.run(op, index)
        for t in op.outputs:
            distance = relative_distance(memory.read(t), expected.read(t))
            assert distance <= TOLERANCE, f"{kernel.name} of {op.kind} {graph.signature(op)}: {distance:.3g}"
    assert len({k.name for k in kernels}) == len(kernels)
    return [k.name for k in kernels]


@pytest.mark.slow
def test_every_kernel_of_every_convolution_of_every_bundled_network():
    seen, compared = set(), []
    for name, entry in MODELS.items():
        for variant in entry.variants if len(entry.variants) > 1 else [None]:
            for graph, plain in lowered_convolutions(name, variant, seen):
                compared += check_every_kernel(graph, plain)
    assert len(seen) > 100
    assert len(compared) > len(seen)


@pytest.mark.parametrize(
    "convolution",
    [
        Conv2d(10, 3, padding=1),
        Conv2d(100, 3, stride=2),
        Conv2d(24, (1, 5), bias=False),
        Conv2d(12, 3, padding=2, dilation=2, groups=4),
        Conv2d(24, 3, padding=1, groups=24),
        Conv2d(48, 3, padding=1, groups=3),
        Conv2d(6, 2, stride=3, padding=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_kernel_of_odd_convolutions(convolution, batch):
    network = Sequential(Conv2d(24, 1), convolution, Flatten(), Linear(7))
    graph = lower(training_graph(forward_graph(network, (batch, 5, 10, 9)), SGD()), BACKEND)
    for op in graph.ops:
        if op.kind in CONVOLUTIONS:
            assert check_every_kernel(alone(graph, op), alone(graph, op, plain=True))


def test_names_of_kernels_are_stable():
    network = build_model("small_resnet")
    rows = []
    for backend in (BACKEND, onednn_backend(), onednn_backend()):
        graph = lower(training_graph(forward_graph(network, (4, 3, 16, 16)), SGD()), backend)
        rows.append([backend.kernels(graph, op) for op in graph.ops])
        # Having run, and being asked again, changes nothing.
        for op in graph.ops:
            if op.kind in CONVOLUTIONS:
                Memory(alone(graph, op), backend).run(alone(graph, op).ops[0])
        rows.append([backend.kernels(graph, op) for op in graph.ops])
    assert all(row == rows[0] for row in rows)
    assert all(kernel.name for row in rows[0] for kernel in row)
