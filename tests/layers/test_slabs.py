"""Large parameters in slabs: what the rewrite makes, and that it changes no number but roundings."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from bathyal.layers import SGD, Conv2d, Dropout, Flatten, Graph, Linear, ReLU, Role, Sequential, forward_graph
from bathyal.layers.graph import Phase, Slab, TensorSpec
from bathyal.layers.modes import evaluation_graph, prediction_graph, training_graph
from bathyal.layers.slabs import SLAB_BYTES, slab_rows, split_large
from bathyal.models import alexnet, vgg16
from bathyal.models.registry import MODELS, build_model

LIMIT = 1000
NETWORK = Sequential(
    Conv2d(4, 3),
    Flatten(),
    Linear(7, name="a"),
    ReLU(),
    Dropout(),
    Linear(33, bias=False, name="b"),
    Linear(3),
    name="n",
)


def forward(dtype: str = "float32") -> Graph:
    return forward_graph(NETWORK, (2, 3, 5, 5), dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "rows"),
    [
        ((4096, 25088), "float32", (316, *[315] * 12)),
        ((4096, 25088), "float64", (*[164] * 21, 163, 163, 163, 163)),
        ((4096, 4096), "float32", (2048, 2048)),
        ((4097, 4096), "float32", (1366, 1366, 1365)),
        ((2, 2**24), "float32", (1, 1)),
    ],
)
def test_slabs_are_few_and_equal(shape: tuple[int, ...], dtype: str, rows: tuple[int, ...]) -> None:
    spec = TensorSpec(shape, dtype)
    found = slab_rows(spec)
    assert found == rows
    assert sum(found) == shape[0]
    row_bytes = spec.nbytes // shape[0]
    assert max(found) == 1 or max(found) * row_bytes <= SLAB_BYTES
    # One slab less, and one of them would be above the limit.
    assert -(-shape[0] // (len(found) - 1)) * row_bytes > SLAB_BYTES


def test_a_network_of_small_parameters_is_left_as_it_is() -> None:
    for name, entry in MODELS.items():
        if name.startswith("resnet") and len(name) < 9:
            graph = forward_graph(build_model(name), (1, entry.channels, 224, 224))
            assert split_large(graph) is graph
    graph = forward()
    assert split_large(graph, max(t.nbytes for t in graph.with_role(Role.PARAMETER))) is graph


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_make_up_the_whole(dtype: str) -> None:
    whole = forward(dtype)
    graph = split_large(whole, LIMIT)
    assert (graph.layers, graph.parameters, graph.name) == (whole.layers, whole.parameters, whole.name)
    expected = {t.name: t for t in whole.with_role(Role.PARAMETER)}
    found: dict[str, list[Any]] = {}
    for tensor in graph.with_role(Role.PARAMETER):
        found.setdefault(tensor.part.whole if tensor.part else tensor.name, []).append(tensor)
    assert list(found) == list(expected)
    for name, parts in found.items():
        assert {t.initializer for t in parts} == {expected[name].initializer}
        if len(parts) > 1:
            assert {t.part.shape for t in parts} == {expected[name].shape}
            ends = [(t.part.first, t.part.first + t.shape[0]) for t in parts]
            assert ends[0][0] == 0 and ends[-1][1] == expected[name].shape[0]
            assert all(a[1] == b[0] for a, b in pairwise(ends))
            assert all(t.nbytes <= LIMIT or t.shape[0] == 1 for t in parts)
            assert [t.name for t in parts] == [f"{name}[{a}:{b}]" for a, b in ends]
    assert {name for name, parts in found.items() if len(parts) > 1} == (
        {"a.weight", "a.bias"} | ({"b.weight"} if dtype == "float64" else set())
    )


def test_slabs_do_not_depend_on_the_batch() -> None:
    def parts(batch: int) -> list[tuple[str, Slab | None]]:
        graph = split_large(forward_graph(NETWORK, (batch, 3, 5, 5)), LIMIT)
        return [(t.name, t.part) for t in graph.with_role(Role.PARAMETER)]

    assert parts(2) == parts(1) == parts(64)


def test_all_modes_have_the_same_state() -> None:
    graph = split_large(forward(), LIMIT)
    expected = [(t.name, t.shape, t.part) for t in graph.with_role(Role.PARAMETER)]
    training = training_graph(graph, SGD(momentum=0.9))
    for mode in (training, evaluation_graph(graph), prediction_graph(graph)):
        assert [(t.name, t.shape, t.part) for t in mode.with_role(Role.PARAMETER)] == expected
    parts = {t.name: t.part for t in training.with_role(Role.PARAMETER)}
    for tensor in training.with_role(Role.OPTIMIZER):
        part = parts[tensor.name.removesuffix(".momentum")]
        assert tensor.part == (part and replace(part, whole=f"{part.whole}.momentum"))
        assert tensor.initializer is None


def test_one_slab_s_gradient_is_alive_at_a_time() -> None:
    """In the order of the graph: each weight gradient is used up before the next one is made."""
    graph = training_graph(split_large(forward(), LIMIT), SGD(momentum=0.9))
    assert sum(op.kind == "split" for op in graph.ops) == sum(op.kind == "concat" for op in graph.ops) == 1
    alive: set[int] = set()
    of_slabs = 0
    for op in graph.ops:
        if op.kind == "linear_backward_weights":
            assert not alive
            alive = set(op.outputs)
            of_slabs += graph.ops[op.forward_op].name == "a"
        elif op.phase is Phase.UPDATE:
            alive -= set(op.inputs)
    assert of_slabs == sum(op.kind == "linear" and op.name == "a" for op in graph.ops) == 2


def test_data_gradients_of_slabs_are_added_in_the_order_of_the_graph() -> None:
    graph = training_graph(split_large(forward(), 400), SGD())
    (first, *_, last) = [op for op in graph.ops if op.kind == "add" and op.name == "a"]
    readers = graph.readers()
    made = [op.outputs[0] for op in graph.ops if op.kind == "linear_backward_data" and op.name == "a"]
    assert first.inputs[0] == made[0]
    assert [graph.ops[readers[t][0]].inputs.index(t) for t in made] == [0, *[1] * (len(made) - 1)]
    assert graph.ops[readers[last.outputs[0]][0]].kind == "reshape"


def test_the_fully_connected_layers_of_vgg16_and_alexnet() -> None:
    for build, counts in ((vgg16, (13, 2, 1)), (alexnet, (5, 2, 1))):
        graph = split_large(forward_graph(build(), (1, 3, 224, 224)))
        names = [op.name for op in graph.ops if op.kind == "linear"]
        assert tuple(names.count(name) for name in dict.fromkeys(names)) == counts
        assert max(t.nbytes for t in graph.with_role(Role.PARAMETER)) <= SLAB_BYTES
