"""VGG: sizes and names against torchvision, small images."""

from __future__ import annotations

from typing import Any

import pytest

from bathyal.layers import SGD, He, Normal, Role, forward_graph, training_graph
from bathyal.memory.errors import ShapeError
from bathyal.models import vgg11, vgg13, vgg16, vgg19


@pytest.mark.parametrize(
    ("build", "batch_norm", "parameters"),
    [
        (vgg11, False, 132_863_336),
        (vgg11, True, 132_868_840),
        (vgg13, False, 133_047_848),
        (vgg13, True, 133_053_736),
        (vgg16, False, 138_357_544),
        (vgg16, True, 138_365_992),
        (vgg19, False, 143_667_240),
        (vgg19, True, 143_678_248),
    ],
)
def test_sizes_are_torchvision_s(build: Any, batch_norm: bool, parameters: int) -> None:
    graph = forward_graph(build(batch_norm=batch_norm), (1, 3, 224, 224))
    assert graph.parameters == parameters
    heavy = sum(op.kind in ("conv2d", "linear") for op in graph.ops)
    assert graph.name == f"vgg{heavy}" + ("_bn" if batch_norm else "")


@pytest.mark.parametrize(
    ("batch_norm", "convolutions"),
    [
        (False, (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)),
        (True, (0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40)),
    ],
)
def test_vgg16_s_state_names_are_torchvision_s(batch_norm: bool, convolutions: tuple[int, ...]) -> None:
    graph = forward_graph(vgg16(batch_norm=batch_norm), (1, 3, 224, 224))
    layers = [f"features.{i}" for i in convolutions] + [f"classifier.{i}" for i in (0, 3, 6)]
    expected = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    if batch_norm:
        parts = ("weight", "bias", "running_mean", "running_var")
        expected |= {f"features.{i + 1}.{part}" for i in convolutions for part in parts}
    state = graph.with_role(Role.PARAMETER, Role.BUFFER)
    assert {t.name for t in state} == expected
    first_values = {len(t.shape): t.initializer for t in state if len(t.shape) > 1}
    assert first_values == {4: He("out"), 2: Normal(0.0, 0.01)}


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("build", [vgg11, vgg13, vgg16, vgg19])
def test_small_images_work(build: Any, side: int) -> None:
    training_graph(forward_graph(build(10, batch_norm=True), (2, 3, side, side)), SGD())


def test_too_small_images_are_refused_by_the_layer_that_they_do_not_fit() -> None:
    with pytest.raises(ShapeError, match="Use larger images") as caught:
        forward_graph(vgg16(), (2, 3, 16, 16))
    assert caught.value.where == "features.30 (max_pool)"
