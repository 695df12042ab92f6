"""Layers that are used at several places, trained: PyTorch's weights, and the same bits under every strategy."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine import programs
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.layers.slabs import split_large
from bathyal.scheduler.strategies.names import STRATEGIES
from tests.support.network_runs import check_agreement, least_plan, problem, run_on_host
from tests.support.onednn_library import onednn_backend
from tests.support.random_networks import sharing_network
from tests.support.spilling import linked

REFERENCE = ReferenceBackend()


def shared_network() -> bt.Layer:
    """Every kind of layer that has parameters or state, at two places at least, by itself and in containers."""
    convolution, norm, full = bt.Conv2d(4, 3, padding=1), bt.BatchNorm2d(), bt.Linear(5)
    block = bt.Residual(bt.Sequential(convolution, norm, bt.Tanh()))
    layers = (bt.Conv2d(4, 1), convolution, norm, block, bt.AvgPool2d(2), block, norm, convolution)
    return bt.Sequential(*layers, bt.Flatten(), bt.Linear(5), full, bt.Tanh(), full)


def batches(count: int, size: int = 6):
    rng = np.random.default_rng(3)
    return [(rng.standard_normal((size, 3, 6, 6)), rng.integers(0, 5, size)) for _ in range(count)]


def test_weights_statistics_and_momentum_are_pytorchs_after_several_steps():
    torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
    nn = torch.nn
    optimizer = bt.SGD(0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    with bt.Trainer(
        shared_network(), (6, 3, 6, 6), optimizer=optimizer, memory="4 MiB", device="reference", dtype="float64"
    ) as ours:
        convolution, norm, full = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(5, 5)
        stem, head = nn.Conv2d(3, 4, 1), nn.Linear(36, 5)
        modules = nn.ModuleDict({"0": stem, "1": convolution, "2": norm, "9": head, "10": full}).double()
        own = {**dict(modules.named_parameters()), **dict(modules.named_buffers())}
        own = {name: value for name, value in own.items() if not name.endswith("num_batches_tracked")}
        assert set(own) == {name for name in ours.state.names() if not name.endswith(".momentum")}
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(torch.tensor(ours.state.read(name)))
        block = lambda x: x + torch.tanh(norm(convolution(x)))  # noqa: E731

        def forward(x):
            x = block(norm(convolution(stem(x))))
            x = convolution(norm(block(nn.functional.avg_pool2d(x, 2))))
            return full(torch.tanh(full(head(x.flatten(1)))))

        theirs = torch.optim.SGD(modules.parameters(), 0.05, 0.9, weight_decay=1e-3, nesterov=True)
        for images, labels in batches(4):
            theirs.zero_grad()
            loss = nn.functional.cross_entropy(forward(torch.tensor(images)), torch.tensor(labels))
            loss.backward()
            theirs.step()
            assert ours.train_step(images, labels).loss == pytest.approx(float(loss.detach()), rel=1e-12)
        for name, value in own.items():
            np.testing.assert_allclose(ours.state.read(name), value.detach().numpy(), 1e-9, 1e-12, err_msg=name)
        for name, value in modules.named_parameters():
            found = ours.state.read(f"{name}.momentum")
            np.testing.assert_allclose(found, theirs.state[value]["momentum_buffer"].numpy(), 1e-9, 1e-12)
        modules.eval()
        images, _ = batches(5)[-1]
        np.testing.assert_allclose(ours.predict(images), forward(torch.tensor(images)).detach().numpy(), 1e-9, 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_every_strategy_comes_to_the_same_bits_in_its_least_memory(seed):
    case = problem(sharing_network(seed), REFERENCE)
    keep = run_on_host(case, least_plan(case, "keep"), REFERENCE)
    for strategy in STRATEGIES:
        found = run_on_host(linked(case, strategy), least_plan(case, strategy), REFERENCE)
        assert found.bits == keep.bits, strategy


@pytest.mark.parametrize("seed", range(3))
def test_one_layout_of_a_shared_weight_serves_all_its_places(seed):
    onednn = onednn_backend()
    case, plain = (problem(sharing_network(seed), backend) for backend in (onednn, REFERENCE))
    keep = run_on_host(case, least_plan(case, "keep"), onednn)
    check_agreement(keep, run_on_host(plain, least_plan(plain, "keep"), REFERENCE))
    for strategy in ("chain", "stream"):
        found = run_on_host(linked(case, strategy), least_plan(case, strategy), onednn)
        assert found.bits == keep.bits, strategy


def test_running_statistics_that_move_between_two_updates_keep_both():
    norm = bt.BatchNorm2d()
    layers = (bt.Conv2d(1024, 1), norm, bt.Conv2d(1024, 1, groups=1024), bt.Tanh(), norm, bt.GlobalAvgPool2d())
    case = problem(bt.Sequential(*layers, bt.Flatten(), bt.Linear(7)), REFERENCE, shape=(2, 3, 2, 2))
    keep = run_on_host(case, least_plan(case, "keep"), REFERENCE)
    graph, case = case.graph, linked(case, "stream")
    plan = least_plan(case, "stream")
    moved = {graph.tensors[copy.tensor].name for copy in plan.copies}
    assert {"1.running_mean", "1.running_var"} <= moved
    assert run_on_host(case, plan, REFERENCE).bits == keep.bits


def test_checkpoints_hold_a_shared_parameter_once(tmp_path):
    def trainer(device):
        return bt.Trainer(
            shared_network(), (6, 3, 6, 6), optimizer=bt.SGD(0.05, momentum=0.9), memory="4 MiB", device=device
        )

    steps = [(images.astype(np.float32), labels) for images, labels in batches(4)]
    with trainer("reference") as whole, trainer("reference") as first:
        for images, labels in steps:
            whole.train_step(images, labels)
        for images, labels in steps[:2]:
            first.train_step(images, labels)
        first.save(tmp_path)
        with trainer("reference") as second:
            assert second.restore(tmp_path)
            for images, labels in steps[2:]:
                second.train_step(images, labels)
            assert second.state.weights_sha256() == whole.state.weights_sha256()


def test_a_shared_weight_above_the_limit_is_trained_in_slabs(monkeypatch):
    def train(limit):
        monkeypatch.setattr(programs, "split_large", partial(split_large, limit_bytes=limit))
        layer = bt.Linear(24)
        network = bt.Sequential(bt.Flatten(), bt.Linear(24), layer, bt.Tanh(), layer, bt.Linear(5))
        with bt.Trainer(network, (6, 3, 6, 6), memory="4 MiB", device="reference", dtype="float64") as trainer:
            for images, labels in batches(3):
                trainer.train_step(images, labels)
            parts = [t.part for t in trainer.planned.graph.tensors if t.part is not None]
            return [part.first for part in parts if part.whole == "2.weight"], trainer.state.read("2.weight")

    (_, whole), (rows, slabs) = train(2**25), train(24 * 24 * 4)
    assert rows == [0, 12]
    np.testing.assert_allclose(slabs, whole, 1e-12)
