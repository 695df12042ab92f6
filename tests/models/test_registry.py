"""Networks by name."""

from __future__ import annotations

import pytest

from bathyal import models
from bathyal.layers import forward_graph
from bathyal.memory.errors import ConfigError
from bathyal.models import MODELS, build_model, find_model, resnet, resnet50, vgg16


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet2500"])
def test_every_network_builds_in_every_variant_at_its_smallest_and_default_size(name: str) -> None:
    entry = find_model(name)
    assert entry.image_side == next(iter(entry.variants.values()))
    for variant, side in entry.variants.items():
        network = build_model(name, classes=7, variant=variant)
        assert network.name == name
        for height in (entry.smallest_image, side):
            graph = forward_graph(network, (2, entry.channels, height, height))
            assert graph.tensors[graph.outputs[0]].shape == (2, 7)


def test_defaults_are_the_functions_own() -> None:
    assert build_model("resnet50") == resnet50()
    assert build_model("resnet2500") == models.resnet2500()
    assert build_model("small_resnet") == models.small_resnet()
    assert build_model("vgg16_bn") == vgg16(batch_norm=True)
    assert find_model("resnet2500").image_side == 227


def test_options_reach_the_function() -> None:
    assert build_model("resnet50", 10, "paper", residual_scale=0.0) == resnet50(10, variant="paper", residual_scale=0.0)
    assert build_model("vgg16", batch_norm=True) == build_model("vgg16_bn")


def test_any_residual_network_has_a_name() -> None:
    assert build_model("resnet:1,2,3,1", 10, "paper") == resnet((1, 2, 3, 1), 10, variant="paper")
    assert build_model("resnet:6, 32, 788, 6").name == "resnet2498-6-32-788-6"
    assert find_model("resnet:1,2,3,1").variants == {"today": 224, "paper": 227}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("resnet5", ("'resnet5'", "Did you mean", "resnet50")),
        ("VGG-16", ("Did you mean", "vgg16")),
        ("transformer", ("one of alexnet, ", "resnet:n1,n2,n3,n4")),
        ("resnet:1,2,3", ("four positive whole numbers", "resnet:1,2,3", "resnet:6,32,788,6")),
        ("resnet:1,2,x,3", ("four positive whole numbers", "resnet:1,2,x,3")),
        ("resnet:1,2,0,3", ("four positive whole numbers", "resnet:1,2,0,3")),
    ],
)
def test_unknown_names_are_refused_with_what_is_near(name: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_model(name)
    assert caught.value.where == "model"
    assert all(part in str(caught.value) for part in parts)


def test_a_name_that_is_near_nothing_gets_no_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        find_model("qqq")
    assert caught.value.hint == ""


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("vgg16", {"variant": "paper"}, "vgg16: expected variant 'today', got 'paper'"),
        ("resnet50", {"variant": "old"}, "resnet50: expected variant 'today' or 'paper', got 'old'"),
        ("alexnet", {"residual_scale": 0.0}, "alexnet: expected options that this network has, got .*residual_scale"),
    ],
)
def test_variants_and_options_that_a_network_does_not_have(
    name: str, options: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        build_model(name, **options)  # type: ignore[arg-type]


def test_everything_in_the_list_is_there() -> None:
    assert set(models.__all__) <= set(vars(models))
    assert {name.removesuffix("_bn") for name in MODELS} <= set(models.__all__)
