"""Layouts: which tensors have which, how many bytes they take, and values in and out of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bathyal.engine.planning.lowering import lower
from bathyal.layers import (
    SGD,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    evaluation_graph,
    forward_graph,
    training_graph,
)
from bathyal.layers.graph import Role, Tensor
from bathyal.memory.errors import ConfigError, DataError
from bathyal.models.registry import build_model
from tests.support.lowered_graphs import lower_step, noise
from tests.support.onednn_library import onednn_backend

BACKEND = onednn_backend()
END = (Flatten(), Linear(7))


def lowered(network, shape, backend=BACKEND):
    return lower_step(network, shape, backend)


LAYOUTS = [
    (Conv2d(10, 3, padding=1), (2, 5, 8, 8)),
    (Conv2d(100, 1), (1, 17, 3, 3)),
    (Conv2d(24, 3, groups=3), (2, 6, 8, 8)),
    (Conv2d(24, 3, groups=24), (2, 24, 8, 8)),
    (Conv2d(64, 7, stride=2, padding=3), (1, 3, 20, 20)),
    (Conv2d(33, (1, 5), groups=11), (2, 22, 8, 8)),
    (Conv2d(24, 5, padding=2), (2, 16, 3, 3)),
]


@pytest.mark.parametrize(("convolution", "shape"), LAYOUTS, ids=str)
def test_decode_undoes_encode(convolution, shape):
    graph = lowered(Sequential(Conv2d(shape[1], 1), convolution, MaxPool2d(2), *END), shape)
    layouts = set()
    for tensor in graph.tensors:
        if tensor.layout.startswith(("index", "mask")):
            continue
        values = (noise(tensor.id, tensor.shape) * 100).astype(tensor.dtype)
        content = BACKEND.encode(tensor, values)
        assert content.shape == (tensor.nbytes,)
        np.testing.assert_array_equal(BACKEND.decode(tensor, content), values)
        # The same from an address that is no multiple of 64.
        moved = np.empty(tensor.nbytes + 4, np.uint8)[4:]
        moved[:] = content
        np.testing.assert_array_equal(BACKEND.decode(tensor, moved), values)
        layouts.add(tensor.layout)
        if tensor.nbytes > tensor.spec.nbytes:
            assert np.count_nonzero(content.view(np.float32)) <= tensor.elements
    assert len(layouts) > 1
    assert any(t.role is Role.PARAMETER and t.layout for t in graph.tensors)


def test_values_and_bytes_that_do_not_fit_are_refused():
    graph = lowered(Sequential(Conv2d(10, 3), *END), (2, 3, 6, 6))
    tensor = next(t for t in graph.tensors if t.role is Role.PARAMETER and t.layout)
    with pytest.raises(DataError, match="shape"):
        BACKEND.encode(tensor, np.zeros((1, 2), np.float32))
    with pytest.raises(DataError, match=f"{tensor.nbytes} bytes"):
        BACKEND.decode(tensor, np.zeros(tensor.nbytes - 64, np.uint8))


def test_bytes_come_from_the_layout():
    block = BACKEND._engine.block
    graph = lowered(Sequential(Conv2d(block + 1, 3), ReLU(), Conv2d(4, 1), *END), (2, 3, 6, 6))
    y = graph.tensors[next(op for op in graph.ops if op.kind == "relu").outputs[0]]
    assert y.shape == (2, block + 1, 4, 4)
    assert y.nbytes == 4 * 2 * 2 * block * 16
    images = graph.with_role(Role.INPUT)[0]
    assert (images.layout, images.nbytes) == ("", images.spec.nbytes)


def test_gradients_and_momentum_have_the_layout_of_their_weight():
    graph = lowered(build_model("small_resnet"), (4, 3, 16, 16))
    updates = [op for op in graph.ops if op.kind == "sgd_update"]
    assert updates
    for op in updates:
        weight, gradient, momentum = (graph.tensors[t] for t in op.inputs[:3])
        assert weight.layout == gradient.layout == momentum.layout
        assert weight.nbytes == gradient.nbytes == momentum.nbytes


@pytest.mark.parametrize("name", ["alexnet", "vgg11_bn", "resnet50", "small_resnet"])
def test_every_batch_and_mode_has_the_same_layouts_of_weights(name):
    found = []
    for batch in (1, 3, 8):
        forward = forward_graph(build_model(name, classes=10), (batch, 3, 64, 64))
        for graph in (training_graph(forward, SGD()), evaluation_graph(forward)):
            low = lower(graph, BACKEND)
            found.append({t.name: (t.layout, t.nbytes) for t in low.with_role(Role.PARAMETER, Role.BUFFER)})
    assert all(layouts == found[0] for layouts in found)


PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location('tests_here', sys.argv[1])
tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tests)
assert tests.BACKEND._engine.block == 8, tests.BACKEND._engine.block
tests.test_bytes_come_from_the_layout()
for case in tests.LAYOUTS:
    tests.test_decode_undoes_encode(*case)
tests.test_every_batch_and_mode_has_the_same_layouts_of_weights("alexnet")
from tests.support.lowered_graphs import check_operations
from tests.support.random_networks import random_network
import numpy as np
for seed in range(6):
    forward = tests.forward_graph(random_network(seed), (3, 3, 8, 8))
    rng = np.random.default_rng(seed)
    feeds = {
        "images": rng.standard_normal((3, 3, 8, 8)).astype(np.float32),
        "labels": np.arange(3),
        "scalars": np.array([0.1, 1.0]),
        "random_key": np.array([1, 2]),
    }
    check_operations(tests.training_graph(forward, tests.SGD(momentum=0.9)), tests.BACKEND, feeds)
"""


def test_a_machine_without_avx_512_has_blocks_of_8():
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-c", PROGRAM, __file__]
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[4], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_layouts_that_were_never_made_are_our_own_fault():
    stray = Tensor(0, "stray", (1, 2, 3, 4), "float32", Role.ACTIVATION, 96, layout="made up")
    with pytest.raises(AssertionError, match="unknown layout"):
        BACKEND.decode(stray, np.zeros(96, np.uint8))


def test_another_type_than_float32_is_refused():
    graph = training_graph(forward_graph(Sequential(Conv2d(4, 1), *END), (2, 3, 4, 4), "float64"), SGD())
    with pytest.raises(ConfigError, match="reference") as refused:
        lower(graph, BACKEND)
    assert refused.value.where == "dtype"
    assert "float64" in refused.value.actual
