"""Comparing with PyTorch: both sides train the same network, each in a process of its own."""

import json
import sys

import numpy as np
import pytest

import bathyal as bt
from bathyal.cli import main
from bathyal.commands.compare import report_comparison
from bathyal.comparison.side import remove_dropout
from bathyal.comparison.torch_step import PEERS, TorchStep, split
from bathyal.layers.builder import forward_graph
from bathyal.memory.errors import DeviceError
from bathyal.memory.process.limit import memory_limit
from bathyal.models.registry import build_model

SMALL = ["small_resnet", "--image", "8", "--batch", "4", "--costs", "analytic", "--threads", "1", "--steps", "2"]
SIDE_FIELDS = {
    "side", "fits", "message", "seconds_per_step", "images_per_second", "peak_bytes", "first_loss", "loss_difference",
    "losses_agree", "ratio",
}  # fmt: skip
SUMMARY_FIELDS = {
    "network", "input_shape", "dtype", "threads", "steps", "memory_bytes", "limit_bytes", "limit_enforced",
    "limit_message", "interleaved", "dropout_removed", "fits", "ratios", "losses_agree",
}  # fmt: skip

needs_torch = pytest.mark.skipif("not __import__('importlib.util').util.find_spec('torch')", reason="needs PyTorch")


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def cgroups_can_be_made():
    try:
        with memory_limit(2**30):
            return True
    except DeviceError:
        return False


@needs_torch
def test_both_sides_start_from_the_same_loss(capfd):
    status = main(["compare", *SMALL, "--memory", "8 MiB", "--against", "torch,torch-checkpoint", "--json"])
    *rows, summary = lines(capfd.readouterr().out)
    assert status == 0, rows
    assert [r["side"] for r in rows] == ["bathyal", "torch", "torch-checkpoint"]
    for r in rows:
        assert r.keys() >= SIDE_FIELDS
        assert r["fits"] is True
        assert r["images_per_second"] == pytest.approx(4 / r["seconds_per_step"])
        assert r["peak_bytes"] > 8 * 2**20
    for r in rows[1:]:
        assert r["losses_agree"] is True
        assert r["loss_difference"] < 1e-4
        assert r["ratio"] == pytest.approx(rows[0]["seconds_per_step"] / r["seconds_per_step"])
    assert rows[0]["arena_bytes"] <= 8 * 2**20
    assert summary.keys() == SUMMARY_FIELDS
    assert summary["losses_agree"] is True
    assert summary["steps"] == 2
    assert summary["limit_bytes"] == (8 + 256) * 2**20
    assert summary["limit_enforced"] is cgroups_can_be_made()
    assert summary["ratios"] == {r["side"]: r["ratio"] for r in rows[1:]}


@needs_torch
def test_a_side_that_the_kernel_kills_does_not_fit_and_the_other_goes_on(capfd):
    if not cgroups_can_be_made():
        pytest.skip("no memory cgroup can be made here (root and a writable cgroup mount are needed)")
    large = [*SMALL, "--image", "32", "--batch", "256"]
    arguments = ["--strategy", "chain", "--memory", "130 MiB", "--limit", "300 MiB", "--against", "torch", "--json"]
    status = main(["compare", *large, *arguments])
    ours, theirs, summary = lines(capfd.readouterr().out)
    assert ours["fits"] is True, ours
    assert ours["peak_bytes"] <= 300 * 2**20
    assert theirs["fits"] is False
    assert "out of memory" in theirs["message"]
    assert theirs["seconds_per_step"] is None
    assert summary["ratios"] == {"torch": None}
    assert summary["losses_agree"] in (None, True)
    assert status == 0, "that PyTorch does not fit is a result"


@needs_torch
def test_a_budget_too_small_for_us_is_said_and_the_peer_goes_on(capfd):
    assert main(["compare", *SMALL, "--memory", "64 KiB", "--limit", "1 GiB", "--against", "torch", "--json"]) == 1
    ours, theirs, summary = lines(capfd.readouterr().out)
    assert ours["fits"] is False
    assert "64.0 KiB" in ours["message"] or "65536" in ours["message"]
    assert theirs["fits"] is True
    assert theirs["ratio"] is None
    assert "does not fit" in report_comparison([ours, theirs], summary)


@needs_torch
def test_the_table_says_what_was_done_about_dropout_and_the_limit(capfd):
    arguments = ["--image", "64", "--batch", "1", "--classes", "4", "--costs", "analytic", "--steps", "1"]
    assert main(["compare", "alexnet", *arguments, "--against", "torch-sequential"]) == 0
    text = capfd.readouterr().out
    for words in ("dropout is left out", "no limit", "torch-sequential", "images/s", "ours/theirs"):
        assert words in text
    assert "DIFFERS" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "torch-chekpoint"], "torch-checkpoint"),
        (["--against", ","], "--against"),
        (["--steps", "0"], "--steps"),
        (["--device", "null"], "--device"),
        (["--limit", "3 parsecs"], "--limit"),
    ],
)
def test_mistakes_end_in_one_line_that_helps(arguments, message, capfd):
    assert main(["compare", *SMALL, *arguments]) == 1
    assert message in capfd.readouterr().err


def test_without_pytorch_it_says_how_to_install_it(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["compare", *SMALL]) == 1
    assert 'pip install "bathyal[bench]"' in capfd.readouterr().err


def test_dropout_goes_and_the_names_stay():
    network = build_model("alexnet", 10)
    plain = forward_graph(network, (1, 3, 64, 64))
    changed = forward_graph(remove_dropout(network), (1, 3, 64, 64))
    assert any(op.kind == "dropout" for op in plain.ops)
    assert not any(op.kind == "dropout" for op in changed.ops)
    assert [t.name for t in changed.tensors if t.initializer] == [t.name for t in plain.tensors if t.initializer]


@pytest.mark.parametrize(("peer", "count"), [("torch", 1), ("torch-checkpoint", 54), ("torch-sequential", 7)])
@pytest.mark.parametrize("name", ["resnet152", "preact_resnet152"])
def test_parts_are_whole_blocks_and_lose_nothing(name, peer, count):
    graph = forward_graph(build_model(name), (1, 3, 64, 64))
    parts = split(graph, PEERS[peer].parts)
    assert [op.id for part in parts for op in part] == [op.id for op in graph.ops]
    assert abs(len(parts) - count) <= 2


@needs_torch
def test_every_peer_takes_the_same_steps_as_the_oracle(torch_network, initial_values):
    network = bt.Sequential(
        bt.Conv2d(6, 3, padding=1),
        bt.BatchNorm2d(),
        bt.ReLU(),
        bt.MaxPool2d(3, 2, 1),
        bt.Residual(bt.Sequential(bt.Conv2d(6, 3, padding=1), bt.Sigmoid()), activation=bt.ReLU()),
        *(bt.Residual(bt.Sequential(bt.BatchNorm2d(), bt.ReLU(), bt.Conv2d(6, 3, padding=1))) for _ in range(5)),
        bt.Branches(bt.Conv2d(4, 1), bt.Sequential(bt.Conv2d(3, 3, padding=1), bt.Tanh())),
        bt.LocalResponseNorm(3),
        bt.AvgPool2d(2),
        bt.Conv2d(8, 1),
        bt.ReLU(),
        bt.GlobalAvgPool2d(),
        bt.Flatten(),
        bt.Linear(5),
    )
    graph = forward_graph(network, (4, 3, 12, 12), "float64")
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(4, 3, 12, 12)), rng.integers(0, 5, 4)
    oracle = torch_network(graph, initial_values(graph, 3))
    expected = []
    for _ in range(3):
        expected.append(oracle.loss(images, labels))
        oracle.sgd_step(0.1, 0.9)
    parameters = [name for name in oracle.values if "running" not in name]
    for peer in PEERS:
        step = TorchStep(graph, peer, bt.SGD(0.1, momentum=0.9), seed=3, threads=1)
        assert PEERS[peer].parts is None or len(split(graph, PEERS[peer].parts)) > 2
        assert [step.train_step(images, labels) for _ in range(3)] == pytest.approx(expected, rel=1e-9)
        values = step.values()
        for name in parameters:
            np.testing.assert_allclose(values[name], oracle.values[name], rtol=1e-8, atol=1e-12)
