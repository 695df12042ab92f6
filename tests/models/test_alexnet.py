"""AlexNet: sizes, names, the activations of the SuperNeurons paper, small images."""

from __future__ import annotations

import pytest

from bathyal.layers import SGD, Role, Uniform, Xavier, forward_graph, training_graph
from bathyal.memory.errors import ConfigError, ShapeError
from bathyal.models import alexnet


def test_today_s_state_is_torchvision_s() -> None:
    graph = forward_graph(alexnet(), (1, 3, 224, 224))
    assert graph.parameters == 61_100_840
    shapes = {
        "features.0": (64, 3, 11, 11),
        "features.3": (192, 64, 5, 5),
        "features.6": (384, 192, 3, 3),
        "features.8": (256, 384, 3, 3),
        "features.10": (256, 256, 3, 3),
        "classifier.1": (4096, 9216),
        "classifier.4": (4096, 4096),
        "classifier.6": (1000, 4096),
    }
    expected = {f"{layer}.weight": shape for layer, shape in shapes.items()}
    expected |= {f"{layer}.bias": shape[:1] for layer, shape in shapes.items()}
    assert {t.name: t.shape for t in graph.with_role(Role.PARAMETER)} == expected
    assert {t.initializer for t in graph.tensors if t.name.endswith("weight")} == {Uniform()}


def test_the_paper_s_forward_activations_are_1469_592_mebibytes_at_batch_200() -> None:
    graph = forward_graph(alexnet(variant="paper"), (200, 3, 227, 227))
    assert graph.parameters == 62_378_344
    outputs = [graph.tensors[op.outputs[0]] for op in graph.ops if op.kind != "flatten"]
    # With the softmax, whose output is as large as its input, these are the paper's 23 layers.
    assert len(outputs) + 1 == 23
    assert round((sum(t.nbytes for t in outputs) + outputs[-1].nbytes) / 2**20, 3) == 1469.592
    assert {t.initializer for t in graph.tensors if t.name.endswith("weight")} == {Xavier()}
    shapes = {op.name: graph.tensors[op.outputs[0]].shape[1:] for op in graph.ops}
    assert [shapes[name] for name in ("conv1", "pool1", "pool2", "pool5", "fc6")] == [
        (96, 55, 55),
        (96, 27, 27),
        (256, 13, 13),
        (256, 6, 6),
        (4096,),
    ]


@pytest.mark.parametrize(("variant", "side"), [("today", 63), ("today", 64), ("paper", 64), ("paper", 96)])
def test_small_images_work(variant: str, side: int) -> None:
    training_graph(forward_graph(alexnet(10, variant=variant), (2, 3, side, side)), SGD())  # type: ignore[arg-type]


@pytest.mark.parametrize(("variant", "layer"), [("today", "features.12"), ("paper", "pool5")])
def test_too_small_images_are_refused_by_the_layer_that_they_do_not_fit(variant: str, layer: str) -> None:
    with pytest.raises(ShapeError, match="Use larger images") as caught:
        forward_graph(alexnet(10, variant=variant), (2, 3, 32, 32))  # type: ignore[arg-type]
    assert caught.value.where == f"{layer} (max_pool)"


def test_unknown_variant_is_refused() -> None:
    with pytest.raises(ConfigError, match="alexnet: expected variant 'today' or 'paper', got 'caffe'"):
        alexnet(variant="caffe")  # type: ignore[arg-type]
