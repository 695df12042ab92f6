"""Backends by name: those of the package, and one that a program adds."""

from collections import Counter

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.backends import registry
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.backends.registry import BACKENDS, BackendOptions, find_backend, make_backend

SHAPE = (4, 3, 6, 6)


class CountingBackend(ReferenceBackend):
    """The reference backend, which counts what is launched."""

    name = "counting"

    def __init__(self, options):
        super().__init__()
        self.options = options
        self.math = options.math
        self.launched = Counter()

    def bind(self, graph, op, kernel, repeat, arena):
        launch = super().bind(graph, op, kernel, repeat, arena)

        def counted(addresses):
            self.launched[op.kind] += 1
            launch(addresses)

        return counted


@pytest.fixture
def counting():
    """The backends that were made as `counting-numpy`, in order."""
    made = []

    def make(options):
        made.append(CountingBackend(options))
        return made[-1]

    bt.register_backend("counting-numpy", make, math=("float32", "bf16"))
    yield made
    bt.unregister_backend("counting-numpy")


def network():
    return bt.Sequential(bt.Conv2d(4, 3), bt.BatchNorm2d(), bt.ReLU(), bt.Flatten(), bt.Linear(3))


def trained(folder=None, **choices):
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=SHAPE), rng.integers(0, 3, SHAPE[0])
    optimizer = bt.SGD(0.1, momentum=0.9)
    choices = {"memory": "1 MiB", "costs": "analytic", "threads": 1, **choices}
    with bt.Trainer(network(), SHAPE, optimizer=optimizer, **choices) as t:
        if folder is not None:
            assert t.restore(folder) == any(folder.iterdir())
        losses = [t.train_step(images, labels).loss for _ in range(2)]
        if folder is not None:
            t.save(folder)
        return losses, t.state.weights_sha256()


def test_a_backend_from_outside_trains_under_its_name(counting, tmp_path):
    assert trained(device="counting-numpy", dtype="float64") == trained(device="reference", dtype="float64")
    (backend,) = counting
    assert backend.options == BackendOptions("float64", "float32", True)
    assert backend.launched["conv2d"] == backend.launched["sgd_update"] // 6 == 2
    # Checkpoints are written and read, and plans are.
    first = trained(tmp_path, device="counting-numpy")
    assert trained(tmp_path, device="counting-numpy") != first


def test_a_plan_file_names_the_backend_and_is_refused_by_others(counting, tmp_path):
    path = tmp_path / "plan.json"
    choices = {"memory": "1 MiB", "costs": "analytic", "threads": 1}
    with bt.Trainer(network(), SHAPE, device="counting-numpy", **choices) as t:
        t.save_plan(path)
    assert '"backend":"counting"' in path.read_text()
    with bt.Trainer(network(), SHAPE, device="counting-numpy", plan=path, **choices) as t:
        assert t.plan.peak_bytes
    with (
        bt.Trainer(network(), SHAPE, device="reference", plan=path, **choices) as t,
        pytest.raises(bt.PlanError, match="--device counting"),
    ):
        _ = t.plan


def test_it_says_which_math_it_knows(counting):
    bt.Trainer(network(), SHAPE, device="counting-numpy", math="bf16")
    assert counting[-1].options.math == "bf16"
    with pytest.raises(bt.ConfigError, match="'float32' or 'bf16' on the device 'counting-numpy'"):
        bt.Trainer(network(), SHAPE, device="counting-numpy", math="tf32")


def test_a_backend_that_ignores_the_math_is_found_out():
    bt.register_backend("own-deaf", lambda options: ReferenceBackend(), math=("float32", "bf16"))
    try:
        with pytest.raises(bt.ConfigError, match="'bf16', as asked for, got a backend that computes in 'float32'"):
            bt.Trainer(network(), SHAPE, device="own-deaf", math="bf16")
    finally:
        bt.unregister_backend("own-deaf")


@pytest.mark.parametrize("math", ["bf16", "tf32"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_auto_takes_none_that_computes_with_another_math(math, dtype, monkeypatch):
    def missing(options):
        raise bt.DeviceError("device 'cuda'", "an NVIDIA GPU", "none")

    reason = "an NVIDIA GPU, got none" if dtype == "float32" else "in float64"
    entry = registry.BackendEntry(missing, BACKENDS["cuda"].math)
    with (
        monkeypatch.context() as patch,
        pytest.raises(bt.ConfigError, match=rf"^math: expected 'float32'.*{reason}"),
    ):
        patch.setattr(registry, "BACKENDS", {**BACKENDS, "cuda": entry})
        registry._make_best(BackendOptions(dtype, math))
    with pytest.raises(bt.ConfigError, match=r"^math: expected 'float32' on the device 'onednn'"):
        bt.Trainer(network(), SHAPE, device="onednn", math=math, dtype=dtype)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ("gpu", "cuda"),
        ("GPU", "cuda"),
        ("cuda:0", "cuda"),
        ("cpu", "onednn"),
        ("cpu:0", "onednn"),
        ("numpy", "reference"),
    ],
)
def test_names_of_other_libraries_are_told_what_is_meant(other, name):
    with pytest.raises(bt.ConfigError, match=f"^device: expected one of auto, .*got '{other}'. Write '{name}'"):
        bt.Trainer(network(), SHAPE, device=other)


def test_a_name_that_was_taken_back_is_gone(counting):
    bt.register_backend("mine", CountingBackend)
    bt.unregister_backend("mine")
    with pytest.raises(bt.ConfigError, match="counting-numpy"):
        bt.Trainer(network(), SHAPE, device="mine")
    with pytest.raises(bt.ConfigError, match="mine"):
        bt.unregister_backend("mine")


@pytest.mark.parametrize("name", ["auto", "cuda", "reference"])
def test_those_of_the_package_stay(name):
    entry = find_backend(name)
    with pytest.raises(bt.ConfigError, match="not taken"):
        bt.register_backend(name, CountingBackend)
    with pytest.raises(bt.ConfigError):
        bt.unregister_backend(name)
    assert BACKENDS[name] is entry


def test_a_name_is_letters_and_digits():
    with pytest.raises(bt.ConfigError, match="letters"):
        bt.register_backend("my backend", CountingBackend)


def test_one_of_the_package_is_made_by_its_name():
    for name in ("reference", "null"):
        assert make_backend(name).name == name
    with pytest.raises(bt.ConfigError, match="Did you mean 'reference'"):
        make_backend("refrence")


def test_auto_in_float64_is_numpy():
    assert make_backend("auto", BackendOptions(dtype="float64")).name == "reference"
