"""Subnormal numbers count as zero while a step runs: in its thread, in OpenMP's workers, in BLAS's; not outside."""

import threading

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.planning.lowering import lower
from bathyal.engine.subnormals import flush_in_blas, load_floating_point_control
from bathyal.layers import SGD, Conv2d, Sequential, forward_graph
from bathyal.layers.modes import prediction_graph
from tests.support.lowered_graphs import Memory
from tests.support.onednn_library import onednn_backend

TINY = np.float32(1e-40)
CONTROL = load_floating_point_control()
if CONTROL.library is None:
    pytest.skip("subnormal numbers are flushed on Linux on x86-64 alone", allow_module_level=True)


def is_flushed():
    """Whether the product of a subnormal number is zero in this thread, by numpy and by Python."""
    flushed = [bool((np.full(16, TINY) * np.float32(1) == 0).all()), 5e-324 * float(np.ones(1)[0]) == 0]
    assert flushed[0] == flushed[1]
    return flushed[0]


def test_numbers_are_flushed_inside_alone_however_it_ends():
    assert not is_flushed()
    with CONTROL.flush_subnormals():
        assert is_flushed()
        with CONTROL.flush_subnormals():
            assert is_flushed()
        assert is_flushed()
    assert not is_flushed()
    with pytest.raises(KeyError), CONTROL.flush_subnormals():
        raise KeyError
    assert not is_flushed()


def test_other_threads_are_left_alone():
    found = []
    thread = threading.Thread(target=lambda: (go.wait(60), found.append(is_flushed())))
    go = threading.Event()
    thread.start()
    with CONTROL.flush_subnormals():
        go.set()
        thread.join()
    assert found == [False]


SHAPE = (8, 32, 8, 8)
LARGE = (8, 32, 16, 16)
LABELS = np.zeros(8, int)
END = (bt.Flatten(), bt.Linear(7, bias=False))


def trainer(device, layers=(), shape=SHAPE, **choices):
    network = bt.Sequential(bt.Conv2d(64, 1, bias=False), *layers, bt.Conv2d(32, 3, padding=1, bias=False), *END)
    choices = {"optimizer": SGD(1e-3, momentum=0.9), "costs": "analytic", "memory": "64 MiB", **choices}
    return bt.Trainer(network, shape, device=device, **choices)


@pytest.mark.parametrize(("device", "threads"), [("onednn", 1), ("onednn", 2), ("onednn", 3), ("reference", 3)])
def test_tiny_weights_make_zeros_in_every_threads_share(device, threads):
    if device == "onednn":
        # Workers that are there already, with the bits not set.
        onednn_backend()
        load_floating_point_control().region(CONTROL.library.fesetenv, CONTROL.read(), threads, 0)
    with trainer(device, shape=LARGE, threads=threads) as made:
        first, *others = [name for name in made.state.tensors if name.endswith("weight")]
        images = np.ones(LARGE, np.float32)
        for name in others:
            made.state.write(name, np.ones(made.state.tensors[name].shape, np.float32))
        made.state.write(first, np.full(made.state.tensors[first].shape, 1e-40))
        assert (made.predict(images) == 0).all()
        assert not is_flushed()
        # What is normal is as it was: 32 × 64 × 9 and less at the borders, all by 256 × 32.
        made.state.write(first, np.full(made.state.tensors[first].shape, 1e-30))
        assert (made.predict(images) > 1e-24).all()


@pytest.mark.parametrize("device", ["onednn", "reference"])
def test_the_momentum_of_what_no_longer_learns_becomes_zero(device):
    """0.9 × 6e-45, the smallest there is, rounds to itself."""
    with trainer(device) as made:
        slot = next(name for name in made.state.tensors if "momentum" in name)
        for name in made.state.tensors:
            made.state.write(name, np.zeros(made.state.tensors[name].shape))
        made.state.write(slot, np.full(made.state.tensors[slot].shape, 2e-38))
        for _ in range(8):
            made.train_step(np.ones(SHAPE, np.float32), LABELS)
        assert (made.state.read(slot) == 0).all()


@pytest.mark.parametrize("device", ["onednn", "reference"])
def test_no_strategy_changes_the_result_where_numbers_are_tiny(device):
    digests = []
    layers = [layer for _ in range(4) for layer in (bt.Conv2d(64, 1), bt.BatchNorm2d(), bt.ReLU())]
    for strategy in ("keep", "chain"):
        with trainer(device, layers, strategy="chain") as made:
            least = made.plan.min_budget_bytes
        memory = "64 MiB" if strategy == "keep" else least
        with trainer(device, layers, strategy=strategy, memory=memory, kernels="fixed") as made:
            rng = np.random.default_rng(0)
            for name, tensor in made.state.tensors.items():
                made.state.write(name, rng.standard_normal(tensor.shape) * rng.choice([1, 1e-20, 1e-38], tensor.shape))
            for _ in range(3):
                made.train_step(rng.standard_normal(SHAPE) * 1e-3, LABELS)
            values = np.concatenate([made.state.read(name).ravel() for name in made.state.tensors])
            assert np.isfinite(values).all() and not ((values != 0) & (np.abs(values) < 1.17e-38)).any()
            digests.append((made.state.weights_sha256(), made.plan.recomputed_ops > 0))
    assert digests[0][0] == digests[1][0]
    assert digests[1][1] and not digests[0][1]


def test_workers_of_openmp_are_as_before_when_a_step_is_over():
    backend = onednn_backend()
    network = Sequential(Conv2d(64, 1, bias=False))
    graph = lower(prediction_graph(forward_graph(network, (8, 64, 32, 32))), backend)
    memory, control = Memory(graph, backend), load_floating_point_control()
    assert control.region is not None, "the library of the backend has loaded OpenMP"
    weight = next(t for t in graph.tensors if t.name.endswith("weight"))
    values = {"images": np.ones((8, 64, 32, 32), np.float32), weight.name: np.full(weight.shape, TINY)}
    for tensor in graph.tensors:
        if tensor.name in values:
            memory.write(tensor.id, values[tensor.name])

    def count_zeros():
        for op in graph.ops:
            memory.run(op)
        made = memory.read(graph.outputs[0])
        return np.count_nonzero(made == 0) / made.size

    for _ in range(2):
        with control.flush_subnormals():
            assert count_zeros() == 1
        assert count_zeros() == 0


def test_every_worker_of_blas_flushes_and_this_thread_does_not():
    flush_in_blas()
    assert not is_flushed()
    left, right = np.full((512, 512), TINY), np.eye(512, dtype=np.float32)
    with CONTROL.flush_subnormals():
        assert not (left @ right).any()
