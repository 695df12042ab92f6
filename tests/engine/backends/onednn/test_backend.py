"""The oneDNN backend's own promises: repetition, sharing, layouts, memory, threads, errors."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from bathyal.engine.backends.onednn import OneDnnBackend
from bathyal.engine.backends.onednn.handles import Primitive
from bathyal.layers import (
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
)
from bathyal.layers.graph import Role
from bathyal.memory.arena import Arena
from bathyal.models.registry import build_model
from tests.support.lowered_graphs import Memory, lower_step, noise
from tests.support.onednn_library import onednn_backend
from tests.support.operation_harness import relative_distance

BACKEND = onednn_backend()
END = (Flatten(), Linear(7))


def lowered(network, shape, backend=BACKEND):
    return lower_step(network, shape, backend)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("channels", [5, 8, 16, 100])
@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("image", [(1, 2), (7, 9), (32, 32)])
def test_a_repeated_batch_norm_gives_the_bits_of_the_first(channels, blocked, image):
    layers = (Conv2d(channels, 1), BatchNorm2d()) if blocked else (BatchNorm2d(), Conv2d(4, 1))
    graph = lowered(Sequential(*layers, *END), (3, channels, *image))
    (op,) = (op for op in graph.ops if op.kind == "batch_norm_training")
    memory = Memory(graph, BACKEND)
    for t in op.inputs:
        memory.write(t, 3 * noise(t, graph.tensors[t].shape) + 50)
    memory.run(op)
    y, *kept = (memory.content(t).copy() for t in op.outputs)
    memory.content(op.outputs[0])[:] = 0xFF
    memory.run(op, repeat=True)
    assert (memory.content(op.outputs[0]) == y).all()
    for t, values in zip(op.outputs[1:], kept, strict=True):
        assert (memory.content(t) == values).all()
    # It reads the statistics, it does not make them again.
    memory.write(op.outputs[1], memory.read(op.outputs[1]) + 1)
    memory.run(op, repeat=True)
    assert (memory.content(op.outputs[0]) != y).any()


def test_primitives_are_shared_by_signature(monkeypatch):
    made = []
    original = Primitive.__init__
    monkeypatch.setattr(Primitive, "__init__", lambda self, *rest: made.append(1) or original(self, *rest))
    counts = {}
    for name in ("resnet50", "resnet152"):
        backend = OneDnnBackend()
        graph = lowered(build_model(name, classes=10), (1, 3, 64, 64), backend)
        made.clear()
        with Arena(4096) as arena:
            launches = [backend.bind(graph, op, 0, repeat, arena) for op in graph.ops for repeat in (False, True)]
            assert len(made) <= 1.2 * len({graph.signature(op) for op in graph.ops})
            counts[name] = len(made)
            assert len({id(launch) for launch in launches}) < len(graph.ops) / 2
            # While somebody holds them they are found again, in this arena.
            assert [backend.bind(graph, op, 0, False, arena) for op in graph.ops] == launches[::2]
            assert len(made) == counts[name]
    assert counts["resnet152"] <= counts["resnet50"] + 20


def test_launches_of_one_signature_alternate():
    """Two instances share a primitive, whose addresses are set before each run."""
    graph = lowered(Sequential(*[Conv2d(16, 3, padding=1, bias=False) for _ in range(4)], *END), (2, 16, 6, 6))
    convolutions = [op for op in graph.ops if op.kind == "conv2d"][1:]
    memory = Memory(graph, BACKEND)
    launches = [BACKEND.bind(graph, op, 0, False, memory.arena) for op in convolutions]
    assert launches[0] is launches[1] is launches[2]
    for op in convolutions:
        for t in op.inputs:
            memory.write(t, noise(t, graph.tensors[t].shape))
    addresses = [[*(memory.addresses[t] for t in (*op.inputs, *op.outputs)), memory.workspace] for op in convolutions]
    first = []
    for op, launch, places in zip(convolutions, launches, addresses, strict=True):
        # The output of one is the input of the next: give each its own again.
        for t in op.inputs:
            memory.write(t, noise(t, graph.tensors[t].shape))
        launch(places)
        first.append(memory.content(op.outputs[0]).copy())
    for position in (1, 0, 2, 2, 0, 1):
        op = convolutions[position]
        for t in op.inputs:
            memory.write(t, noise(t, graph.tensors[t].shape))
        memory.content(op.outputs[0])[:] = 0xFF
        launches[position](addresses[position])
        assert (memory.content(op.outputs[0]) == first[position]).all()
    assert not (first[0] == first[1]).all()


def test_two_arenas_do_not_mix():
    graph = lowered(Sequential(Conv2d(8, 3), ReLU(), *END), (2, 3, 6, 6))
    op = next(op for op in graph.ops if op.kind == "relu")
    memories = [Memory(graph, BACKEND), Memory(graph, BACKEND)]
    launches = [BACKEND.bind(graph, op, 0, False, m.arena) for m in memories]
    for number, memory in enumerate(memories):
        memory.write(op.inputs[0], noise(number, graph.tensors[op.inputs[0]].shape))
    for memory, launch in zip(memories, launches, strict=True):
        launch([memory.addresses[t] for t in (*op.inputs, *op.outputs)] + [0])
    for number, memory in enumerate(memories):
        expected = np.maximum(noise(number, graph.tensors[op.inputs[0]].shape), 0)
        np.testing.assert_array_equal(memory.read(op.outputs[0]), expected)


def test_another_backend_of_the_same_library_gives_the_same_graph():
    graphs = [lowered(build_model("resnet18"), (2, 3, 64, 64), b) for b in (BACKEND, onednn_backend())]
    assert graphs[0] == graphs[1]
    assert BACKEND.version() == onednn_backend().version()
    assert "oneDNN 3." in BACKEND.version()
    assert "numpy" in BACKEND.version()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read the resident memory from")
def test_backends_launches_and_conversions_leave_no_memory_behind():
    network = Sequential(
        *[layer for _ in range(3) for layer in (Conv2d(16, 3, padding=1), BatchNorm2d(), ReLU())], MaxPool2d(2), *END
    )
    weight = noise(0, (16, 16, 3, 3))

    def once():
        backend = OneDnnBackend()
        graph = lowered(network, (2, 16, 8, 8), backend)
        memory = Memory(graph, backend)
        for op in graph.ops:
            for kernel in range(len(backend.kernels(graph, op))):
                backend.bind(graph, op, kernel, False, memory.arena)
        tensor = next(t for t in graph.tensors if t.shape == weight.shape and t.role is Role.PARAMETER)
        for _ in range(20):
            backend.decode(tensor, backend.encode(tensor, weight))
        memory.arena.close()

    for _ in range(10):
        once()
    gc.collect()
    before = resident_bytes()
    for _ in range(60):
        once()
    gc.collect()
    assert resident_bytes() - before < 4 * 2**20


def test_a_bound_operation_takes_little_memory():
    """10,000 layers of one signature bind to one launch."""
    import tracemalloc

    graph = lowered(Sequential(*[Conv2d(8, 1) for _ in range(60)], *END), (1, 8, 4, 4))
    with Arena(4096) as arena:
        held = [BACKEND.bind(graph, op, 0, False, arena) for op in graph.ops]
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        again = [BACKEND.bind(graph, op, 0, False, arena) for op in graph.ops]
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert again == held
    assert used < 100 * len(graph.ops)


def test_one_and_two_threads_agree():
    network = Sequential(Conv2d(32, 3, bias=False), BatchNorm2d(), ReLU(), MaxPool2d(2), Conv2d(20, 3, groups=4), *END)
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            backend = OneDnnBackend()
            graph = lowered(network, (4, 3, 20, 20), backend)
            memory = Memory(graph, backend)
            rng = np.random.default_rng(2)
            for t in graph.tensors:
                if t.role in (Role.PARAMETER, Role.BUFFER, Role.INPUT):
                    memory.write(t.id, rng.uniform(-0.3, 0.7, t.shape).astype(np.float32))
                elif t.role is Role.OPTIMIZER:
                    memory.write(t.id, np.zeros(t.shape, np.float32))
                elif t.role is Role.LABEL:
                    memory.write(t.id, np.arange(4))
                elif t.role is Role.SCALARS:
                    memory.write(t.id, np.array([0.1, 1.0]) if t.dtype == "float64" else np.array([1, 2]))
            for op in graph.ops:
                memory.run(op)
            results.append({t.name: memory.read(t.id) for t in graph.tensors if t.dtype == "float32"})
    assert results[0].keys() == results[1].keys()
    for name, values in results[0].items():
        assert relative_distance(results[1][name], values) <= 1e-4, name
