"""One layer object at several places: one set of parameters, whose gradients are summed and which are updated once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from bathyal.layers import (
    SGD,
    BatchNorm2d,
    Branches,
    Conv2d,
    Dropout,
    Flatten,
    Graph,
    Layer,
    Linear,
    ReLU,
    Residual,
    Sequential,
    forward_graph,
    training_graph,
)
from bathyal.layers.graph import Phase, Role
from bathyal.layers.initializers import Constant
from bathyal.layers.linear import LINEAR
from bathyal.layers.merge import Add
from bathyal.layers.slabs import split_large
from bathyal.memory.errors import GraphError, ShapeError
from tests.support.random_networks import sharing_network

IMAGES = (2, 3, 4, 4)


def build(*layers: Layer, shape: tuple[int, ...] = IMAGES) -> Graph:
    return forward_graph(Sequential(*layers), shape)


def names(graph: Graph, *roles: Role) -> list[str]:
    return [t.name for t in graph.with_role(*roles)]


def check_training(forward: Graph) -> Graph:
    """Each parameter has one update, after all that read it, and sums of the gradients of all its readers."""
    graph = training_graph(forward, SGD(0.1, momentum=0.9))
    reads = Counter(t for op in graph.ops if op.phase is Phase.FORWARD for t in op.inputs)
    updated = Counter(t for op in graph.ops if op.phase is Phase.UPDATE for t in op.updates)
    for tensor in graph.with_role(Role.PARAMETER):
        assert updated[tensor.id] == 1
        update = next(op for op in graph.ops if op.phase is Phase.UPDATE and tensor.id in op.updates)
        assert all(op.id <= update.id for op in graph.ops if tensor.id in op.inputs)
        stem = f"{tensor.name}.gradient"
        sums = [op for op in graph.ops if op.kind == "add" and graph.tensors[op.outputs[0]].name.startswith(stem)]
        assert len(sums) == reads[tensor.id] - 1
        assert not sums or sums[-1].outputs[0] == update.inputs[1]
    return graph


def test_a_layer_used_twice_has_one_set_of_parameters() -> None:
    layer = Linear(3)
    forward = build(Flatten(), Linear(3), layer, ReLU(), layer, Linear(2))
    assert names(forward, Role.PARAMETER) == [f"{n}.{part}" for n in (1, 2, 5) for part in ("weight", "bias")]
    assert [op.name for op in forward.ops] == ["0", "1", "2", "3", "4", "5"]
    check_training(forward)


def test_equal_layers_that_are_two_objects_are_two_layers() -> None:
    assert len(names(build(Flatten(), Linear(3), Linear(3)), Role.PARAMETER)) == 4


def test_a_layer_with_a_name_of_its_own_is_used_twice() -> None:
    layer = Linear(3, name="full")
    forward = build(Flatten(), Linear(3), layer, layer, layer)
    assert names(forward, Role.PARAMETER) == ["1.weight", "1.bias", "full.weight", "full.bias"]
    assert [op.name for op in forward.ops[2:]] == ["full", "full#2", "full#3"]


def test_a_batch_norm_updates_its_running_statistics_at_each_place_in_order() -> None:
    norm = BatchNorm2d()
    graph = check_training(build(norm, ReLU(), norm, Flatten(), Linear(2)))
    assert names(graph, Role.BUFFER) == ["0.running_mean", "0.running_var"]
    updates = [op for op in graph.ops if op.kind == "batch_norm_update"]
    assert [op.name for op in updates] == ["0", "2"]
    assert updates[0].updates == updates[1].updates


@pytest.mark.parametrize(
    "container",
    [
        Sequential(Conv2d(3, 1), BatchNorm2d()),
        Residual(Conv2d(3, 1), Conv2d(3, 1), Sequential(BatchNorm2d())),
        Residual(Residual(Conv2d(3, 1), Conv2d(3, 1)), Conv2d(3, 1)),
        Branches(Conv2d(3, 1), BatchNorm2d(), merge=Add()),
    ],
    ids=lambda container: type(container).__name__,
)
def test_a_container_used_twice_shares_all_in_it(container: Layer) -> None:
    once, twice = build(container, Flatten(), Linear(2)), build(container, ReLU(), container, Flatten(), Linear(2))
    roles = (Role.PARAMETER, Role.BUFFER)
    assert names(twice, *roles)[:-2] == names(once, *roles)[:-2]
    check_training(twice)


def test_a_layer_is_the_same_inside_of_a_container_and_outside() -> None:
    layer = Conv2d(3, 1)
    block = Sequential(layer, BatchNorm2d(), layer)
    forward = build(layer, block, Residual(block), Branches(layer, block, merge=Add()), Flatten(), Linear(2))
    assert names(forward, Role.PARAMETER)[:4] == ["0.weight", "0.bias", "1.1.weight", "1.1.bias"]
    assert len(names(forward, Role.PARAMETER)) == 6
    check_training(forward)


class Own(Layer):
    """A layer that makes a parameter, and another layer whenever it is built."""

    def build(self, builder, x):  # type: ignore[no-untyped-def]
        features = builder.spec(x).shape[1]
        with builder.scope("own"):
            x = builder.apply(LINEAR, (x, builder.parameter("weight", (features, features), Constant(0.5))))
        return builder.add(Linear(features), x, "inner")


def test_what_a_layer_makes_while_it_is_built_is_shared_too() -> None:
    own = Own()
    forward = build(Flatten(), own, own, Own(), Linear(2))
    made = ["own.weight", "inner.weight", "inner.bias"]
    assert names(forward, Role.PARAMETER)[:6] == [f"{n}.{name}" for n in (1, 3) for name in made]
    check_training(forward)


def test_layers_without_state_work_anew_at_each_place() -> None:
    dropout, relu = Dropout(0.5), ReLU()
    forward = build(Flatten(), dropout, relu, dropout, relu, Linear(2))
    assert [op.attrs["stream"] for op in forward.ops if op.kind == "dropout"] == [0, 1]


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_that_share(seed: int) -> None:
    check_training(forward_graph(sharing_network(seed), (2, 3, 8, 8)))


def test_slabs_are_shared() -> None:
    layer = Linear(48)
    forward = split_large(build(Flatten(), layer, ReLU(), layer, Linear(2)), 48 * 48 * 2)
    assert len([name for name in names(forward, Role.PARAMETER) if name.startswith("1.weight[")]) == 2
    check_training(forward)


def test_a_shape_that_the_layer_does_not_have_is_refused_with_both_places() -> None:
    layer = Linear(5)
    with pytest.raises(ShapeError, match=r"^3: .*first use at 1: 1\.weight.*\(5, 48\), got .*\(5, 5\).*second layer"):
        build(Flatten(), layer, ReLU(), layer)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_residuals_directly_in_residuals(depth: int) -> None:
    layer: Layer = Linear(4)
    for _ in range(depth):
        layer = Residual(layer, Linear(4), ReLU())
    forward = build(Flatten(), layer, Linear(2))
    assert len(names(forward, Role.PARAMETER)) == 2 * (depth + 2)
    check_training(forward)


def test_a_name_that_is_given_to_two_layers_is_still_refused() -> None:
    with pytest.raises(GraphError, match="given once"):
        build(Flatten(), Linear(3, name="a"), Linear(3, name="a"))
    with pytest.raises(GraphError, match="given once"):
        build(ReLU(name="a"), ReLU(name="a"))


@pytest.mark.parametrize("kind", [Sequential, Residual, lambda layer: Branches(layer, ReLU(), merge=Add())])
def test_containers_are_nested_beyond_the_depth_of_pythons_stack(kind: Callable[[Layer], Layer]) -> None:
    layer: Layer = Linear(4)
    for _ in range(1200):
        layer = kind(layer)
    assert len(build(Flatten(), Linear(4), layer).with_role(Role.PARAMETER)) == 4
