"""Residual networks: sizes against torchvision and the SuperNeurons table, names, variants."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from bathyal.layers import SGD, Constant, He, Layer, Role, Xavier, forward_graph, training_graph
from bathyal.memory.errors import ConfigError
from bathyal.models import (
    resnet,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
    resnet1001,
    resnet2500,
    small_resnet,
)
from bathyal.models.resnet import RESNET_1001, RESNET_2500, Stages, depth
from bathyal.models.variant import Variant
from benchmarks.superneurons.layers import LayerKind, paper_network

TODAY, PAPER = (1, 3, 224, 224), (1, 3, 227, 227)

TABLE: list[tuple[Stages, int, int, int, float, float]] = [
    # stages, depth, layers without and with fork and join, million parameters, MiB of forward activations per image
    ((3, 4, 6, 3), 50, 160, 192, 25.56, 180.5),
    ((3, 4, 23, 3), 101, 313, 379, 44.55, 278.1),
    ((3, 8, 36, 3), 152, 466, 566, 60.19, 398.7),
    ((3, 16, 62, 3), 254, 772, 940, 91.48, 639.8),
    ((6, 32, 124, 6), 506, 1528, 1864, 178.8, 1257),
    ((12, 64, 248, 12), 1010, 3040, 3712, 353.5, 2492),
    (RESNET_2500, 2498, 7504, 9168, 920.6, 5070),
]
"""The depth experiment of Wang et al., "SuperNeurons", 2018."""


@pytest.mark.parametrize(
    ("network", "parameters", "convolutions"),
    [
        (resnet18(), 11_689_512, 20),
        (resnet34(), 21_797_672, 36),
        (resnet50(), 25_557_032, 53),
        (resnet101(), 44_549_160, 104),
        (resnet152(), 60_192_808, 155),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_sizes_are_torchvision_s(network: Layer, parameters: int, convolutions: int) -> None:
    graph = forward_graph(network, TODAY)
    assert graph.parameters == parameters
    assert sum(op.kind == "conv2d" for op in graph.ops) == convolutions
    assert graph.tensors[graph.outputs[0]].shape == (1, 1000)


def four_digits(value: float) -> float:
    return float(f"{value:.4g}")


@pytest.mark.parametrize(
    ("stages", "deep", "layers", "with_forks", "millions", "mebibytes"), TABLE, ids=lambda v: str(v)
)
def test_paper_variant_reproduces_the_depth_table(
    stages: Stages, deep: int, layers: int, with_forks: int, millions: float, mebibytes: float
) -> None:
    graph = forward_graph(resnet(stages, variant="paper"), PAPER)
    network = paper_network(graph)
    assert depth(stages) == deep
    assert four_digits(graph.parameters / 1e6) == millions
    # This table counts the data as a layer.
    assert len(network.layers) + 1 == with_forks
    assert sum(layer.kind not in (LayerKind.FORK, LayerKind.JOIN) for layer in network.layers) + 1 == layers
    activations = sum(network.nbytes(t) for layer in network.layers for t in layer.outputs)
    assert four_digits(activations / 2**20) == mebibytes


def test_resnet2500_is_the_deepest_of_the_table_and_resnet1001_has_its_depth() -> None:
    assert forward_graph(resnet2500(), PAPER) == forward_graph(
        resnet(RESNET_2500, variant="paper", name="resnet2500"), PAPER
    )
    assert depth(RESNET_1001) == 1001
    graph = forward_graph(resnet1001(), TODAY)
    assert sum(op.kind == "conv2d" for op in graph.ops) == 3 * sum(RESNET_1001) + 1 + 4


@pytest.mark.parametrize("build", [resnet50, resnet18])
def test_maps_halve_in_each_stage(build: Any) -> None:
    for variant, side in (("today", 224), ("paper", 227)):
        graph = forward_graph(build(variant=variant), (1, 3, side, side))
        shapes = {op.name: graph.tensors[op.outputs[0]].shape for op in graph.ops}
        sides = [shapes[name][2] for name in ("maxpool", "layer1.0", "layer2.0", "layer3.0", "layer4.0")]
        assert sides == [56, 56, 28, 14, 7]


def state(prefix: str, *, bias: bool) -> set[str]:
    return {f"{prefix}.weight"} | ({f"{prefix}.bias"} if bias else set())


def batch_norm(prefix: str) -> set[str]:
    return state(prefix, bias=True) | {f"{prefix}.running_mean", f"{prefix}.running_var"}


@pytest.mark.parametrize(
    ("network", "stages", "convolutions", "projected"),
    [(resnet18(), (2, 2, 2, 2), 2, (2, 3, 4)), (resnet50(), (3, 4, 6, 3), 3, (1, 2, 3, 4))],
    ids=["resnet18", "resnet50"],
)
def test_state_names_are_torchvision_s(
    network: Layer, stages: Stages, convolutions: int, projected: tuple[int, ...]
) -> None:
    expected = state("conv1", bias=False) | batch_norm("bn1") | state("fc", bias=True)
    for number, blocks in enumerate(stages, 1):
        for block in range(blocks):
            prefix = f"layer{number}.{block}"
            for position in range(1, convolutions + 1):
                expected |= state(f"{prefix}.conv{position}", bias=False) | batch_norm(f"{prefix}.bn{position}")
            if block == 0 and number in projected:
                expected |= state(f"{prefix}.downsample.0", bias=False) | batch_norm(f"{prefix}.downsample.1")
    graph = forward_graph(network, TODAY)
    assert {t.name for t in graph.with_role(Role.PARAMETER, Role.BUFFER)} == expected


def test_variants_differ_in_stride_eps_pooling_and_first_values() -> None:
    for variant, strides, eps, padding in (
        ("today", ((1, 1), (2, 2)), 1e-5, (1, 1)),
        ("paper", ((2, 2), (1, 1)), 1e-3, (0, 0)),
    ):
        graph = forward_graph(resnet50(variant=variant), PAPER)  # type: ignore[arg-type]
        ops = {op.name: op for op in graph.ops}
        assert (ops["layer2.0.conv1"].attrs["stride"], ops["layer2.0.conv2"].attrs["stride"]) == strides
        assert {op.attrs["eps"] for op in graph.ops if op.kind == "batch_norm"} == {eps}
        assert ops["maxpool"].attrs["padding"] == padding
        weights = {t.initializer for t in graph.with_role(Role.PARAMETER) if len(t.shape) == 4}
        assert weights == {He("out") if variant == "today" else Xavier()}


@pytest.mark.parametrize(("build", "last"), [(resnet50, "bn3"), (resnet18, "bn2"), (small_resnet, "bn2")])
def test_residual_scale_is_the_first_weight_of_each_block_s_last_batch_norm(build: Any, last: str) -> None:
    graph = forward_graph(build(residual_scale=0.25), (1, 3, 32, 32))
    norms = {op.name: graph.tensors[op.inputs[1]].initializer for op in graph.ops if op.kind == "batch_norm"}
    for name, initializer in norms.items():
        ends_a_block = name.startswith("layer") and name.endswith(last)
        assert initializer == Constant(0.25 if ends_a_block else 1.0), name


@pytest.mark.parametrize("variant", ["today", "paper"])
@pytest.mark.parametrize("side", [32, 33, 64])
def test_small_images_work(variant: Variant, side: int) -> None:
    for network in (resnet18(10, variant=variant), resnet50(10, variant=variant)):
        training_graph(forward_graph(network, (2, 3, side, side)), SGD())


@pytest.mark.parametrize("build", [resnet18, resnet50])
def test_pytorch_runs_what_the_graph_says(build: Any, torch_network: Any, initial_values: Any) -> None:
    for variant in ("today", "paper"):
        graph = forward_graph(build(10, variant=variant), (2, 3, 32, 32))
        net = torch_network(graph, initial_values(graph))
        loss = net.loss(np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32), np.array([1, 2]))
        assert np.isfinite(loss)
        assert all(np.isfinite(g).all() and g.any() for g in net.gradients.values())


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: resnet((3, 4, 6)), ("four positive whole numbers", "(3, 4, 6)")),  # type: ignore[arg-type]
        (lambda: resnet((3, 4, 0, 3)), ("four positive whole numbers", "(3, 4, 0, 3)")),
        (lambda: resnet50(variant="old"), ("'today' or 'paper'", "'old'")),  # type: ignore[arg-type]
        (lambda: resnet((1, 1, 1, 1), block="wide"), ("'basic' or 'bottleneck'", "'wide'")),  # type: ignore[arg-type]
        (lambda: small_resnet(widths=()), ("at least one width", "widths=()")),
        (lambda: small_resnet(blocks=0), ("one block", "blocks=0")),
    ],
)
def test_mistakes_are_refused(make: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert all(part in str(caught.value) for part in parts)


def metadata_bytes(stages: Stages) -> tuple[int, int]:
    """Layers, and bytes of the forward graph and the training graph together."""
    tracemalloc.start()
    try:
        forward = forward_graph(resnet(stages, variant="paper"), PAPER)
        training = training_graph(forward, SGD(0.1, momentum=0.9))
        return training.layers, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_graphs_are_small_and_grow_with_the_depth_alone() -> None:
    metadata_bytes((1, 1, 1, 1))
    layers, nbytes = metadata_bytes((3, 16, 100, 3))
    twice_layers, twice_nbytes = metadata_bytes((6, 32, 200, 6))
    assert nbytes / layers < 6 * 1024
    assert twice_nbytes / twice_layers < 1.1 * nbytes / layers


def test_small_resnet_reads_digits(torch_network: Any, initial_values: Any) -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn, which has the digits, is not installed")
    digits = datasets.load_digits()
    images = (digits.images[:, None].astype(np.float32) - 8.0) / 8.0
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1440], order[1440:]
    graph = forward_graph(small_resnet(10), (48, 1, 8, 8))
    net = torch_network(graph, initial_values(graph))
    rng = np.random.default_rng(1)
    epochs = 5
    for epoch in range(epochs):
        rate = 0.1 * (1 - epoch / epochs)
        for batch in rng.permutation(train).reshape(-1, 48):
            net.loss(images[batch], labels[batch])
            net.sgd_step(rate, momentum=0.9, weight_decay=5e-4)
    seen = forward_graph(small_resnet(10), (len(test), 1, 8, 8))
    logits = torch_network(seen, net.values, training=False).forward(images[test]).detach().numpy()
    assert (logits.argmax(1) == labels[test]).mean() >= 0.95
