"""A user's whole run on the CUDA backend: memory, checkpoints, evaluation and short batches, without a GPU."""

import sys

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.backends import registry
from bathyal.engine.backends.cuda.backend import CudaBackend
from bathyal.memory.cuda.arena import RESERVED_BYTES
from bathyal.memory.cuda.device import CudaMachine
from bathyal.memory.registry import Registry
from bathyal.models.registry import build_model
from bathyal.scheduler.plan.steps import Offload
from tests.support.cuda_library import CpuLibrary
from tests.support.fake_cuda import FakeCuda

SHAPE = (6, 1, 28, 28)
MIB = 2**20


@pytest.fixture(autouse=True)
def runtimes(monkeypatch):
    """Each run gets a GPU of its own; the runtimes, in order."""
    made = []

    def make(options):
        runtime = FakeCuda(total=RESERVED_BYTES + 64 * MIB, seed=len(made), rate=1e9)
        made.append(runtime)
        library = CpuLibrary(runtime.enqueue)
        return CudaBackend(library, CudaMachine(runtime, options.cuda_graphs))

    entry = registry.BackendEntry(make, registry.BACKENDS["cuda"].math)
    monkeypatch.setattr(registry, "BACKENDS", Registry("device", {**registry.BACKENDS, "cuda": entry}))
    return made


def trainer(**choices):
    choices = {"device": "cuda", "kernels": "fixed", "costs": "analytic", "threads": 1, "memory": "8 MiB", **choices}
    return bt.Trainer(build_model("small_resnet"), SHAPE, optimizer=bt.SGD(0.05, momentum=0.9), **choices)


def batches(count, size=SHAPE[0]):
    for number in range(count):
        rng = np.random.default_rng(number)
        yield rng.normal(size=(size, *SHAPE[1:])).astype(np.float32), rng.integers(0, 10, size)


def trained(steps=4, **choices):
    with trainer(**choices) as t:
        losses = [result.loss for result in t.fit(batches(steps))]
        return losses, t.state.weights_sha256(), t.plan


@pytest.fixture(scope="module")
def least_bytes():
    with trainer(device="null", strategy="chain") as t:
        return t.plan.min_budget_bytes


def test_it_learns_what_the_reference_backend_learns():
    losses, _, _ = trained()
    expected, _, _ = trained(device="reference")
    np.testing.assert_allclose(losses, expected, rtol=1e-3)


@pytest.mark.parametrize("graphs", [True, False])
def test_a_small_budget_moves_tensors_to_pinned_memory_and_changes_no_bit(runtimes, graphs):
    losses, digest, plan = trained(cuda_graphs=graphs)
    assert not plan.outside_bytes
    with trainer(strategy="offload", link="1 GB") as t:
        least = t.plan.min_budget_bytes
    found, found_digest, tight = trained(strategy="auto", memory=least, cuda_graphs=graphs)
    assert (found, found_digest) == (losses, digest)
    assert any(isinstance(step, Offload) for step in tight.steps)
    assert runtimes[-1].calls["hostAlloc"] >= 1
    assert runtimes[-1].calls["graphLaunch"] == (3 if graphs else 0)
    assert all(runtime.alive == 0 for runtime in runtimes)


def test_a_resumed_run_goes_on_with_the_same_bits(tmp_path):
    small = {"strategy": "chain", "memory": "3 MiB"}
    expected, digest, _ = trained(4, **small)
    with trainer(**small) as t:
        losses = []
        for result in t.fit(batches(4)):
            losses.append(result.loss)
            if len(losses) == 2:
                t.save(tmp_path)
                break
    with trainer(**small) as t:
        assert t.restore(tmp_path)
        losses += [result.loss for result in t.fit(list(batches(4)))]
        assert losses == expected
        assert t.state.weights_sha256() == digest


def test_evaluation_prediction_and_a_short_last_batch():
    results = []
    for device in ("cuda", "reference"):
        with trainer(device=device) as t:
            losses = [t.train_step(*next(batches(1, size))).loss for size in (6, 4, 6)]
            found = t.evaluate(list(batches(2)))
            results.append((*losses, found.loss, *t.predict(next(batches(1))[0]).ravel()))
    np.testing.assert_allclose(results[0], results[1], rtol=2e-3, atol=1e-3)


def test_kernels_and_link_are_measured_on_the_gpu(runtimes, tmp_path):
    tiny = bt.Sequential(bt.Conv2d(4, 3), bt.BatchNorm2d(), bt.ReLU(), bt.Flatten(), bt.Linear(10))
    with bt.Trainer(tiny, SHAPE, memory="2 MiB", device="cuda", cache=tmp_path) as t:
        t.train_step(*next(batches(1)))
        kernels, link = sum(map(len, t.planned.costs.kernels)), t.planned.costs.link
    # Two events and a time for each of four runs of every kernel.
    assert runtimes[0].calls["eventElapsedTime"] >= 4 * 10 <= 4 * kernels
    assert link.out_bytes_per_second == pytest.approx(1e9, rel=0.5)
    assert list(tmp_path.iterdir())


def test_what_is_free_is_what_the_gpu_has(runtimes):
    with pytest.raises(bt.BudgetError, match=r"at most the 64.0 MiB \(67108864 bytes\) that are free, got"):
        _ = trainer(memory="1 GiB").plan
    with trainer(memory=None) as t:
        t.train_step(*next(batches(1)))
        assert t.plan.budget_bytes == 64 * MIB * 19 // 20


class TestChoice:
    """Who computes where."""

    def test_auto_takes_a_gpu_that_is_there(self):
        with trainer(device="auto") as t:
            t.train_step(*next(batches(1)))
            assert t._session.backend.name == "cuda"

    def test_auto_does_without_one_and_a_user_who_wants_one_is_told_what_is_missing(self, monkeypatch):
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, "cupy", None)
        with trainer(device="auto") as t:
            assert t._session.backend.name in ("onednn", "reference")
        with pytest.raises(bt.DeviceError, match=r"pip install 'bathyal\[cuda13\]'"):
            trainer(device="cuda")

    def test_another_math_is_a_gpus(self):
        with pytest.raises(bt.ConfigError, match="math"):
            trainer(math="fp8")
        with pytest.raises(bt.ConfigError, match="'float32' on the device 'onednn'"):
            trainer(device="onednn", math="tf32")
