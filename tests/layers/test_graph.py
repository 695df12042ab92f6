"""Graphs as data: JSON round trip, fingerprints, queries."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bathyal.layers import (
    SGD,
    BatchNorm2d,
    Branches,
    Conv2d,
    Dropout,
    Flatten,
    Graph,
    He,
    Layer,
    Linear,
    ReLU,
    Sequential,
    evaluation_graph,
    forward_graph,
    training_graph,
)
from bathyal.layers.graph import NO_OP, Slab
from bathyal.layers.slabs import split_large
from bathyal.memory.errors import GraphError
from bathyal.models import alexnet, resnet18, small_resnet

NETWORKS: list[tuple[Layer, tuple[int, ...]]] = [
    (Sequential(Flatten(), Linear(3)), (2, 4)),
    (
        Sequential(Branches(Conv2d(2, 3, initializer=He("out")), Conv2d(3, 3)), Flatten(), Dropout(), Linear(3)),
        (2, 1, 5, 5),
    ),
    (small_resnet(), (2, 1, 8, 8)),
    (resnet18(7, variant="paper", residual_scale=0.0), (2, 3, 32, 32)),
    (alexnet(5, variant="paper"), (2, 3, 64, 64)),
]


def graphs() -> list[Graph]:
    made = []
    for network, shape in NETWORKS:
        for dtype in ("float32", "float64"):
            forward = forward_graph(network, shape, dtype)
            made += [forward, training_graph(forward, SGD()), training_graph(forward, SGD(momentum=0.9, nesterov=True))]
            made.append(evaluation_graph(forward))
    slabs = split_large(forward_graph(*NETWORKS[4]), 10**6)
    made += [slabs, training_graph(slabs, SGD(momentum=0.9))]
    return made


def test_json_gives_an_equal_graph_back() -> None:
    for graph in graphs():
        again = Graph.from_json(graph.to_json())
        assert again == graph
        assert again.fingerprint() == graph.fingerprint()
        assert [again.signature(op) for op in again.ops] == [graph.signature(op) for op in graph.ops]


def test_a_graph_without_slabs_is_written_as_before_there_were_any() -> None:
    """The fingerprints in old checkpoints are over this text."""
    document = json.loads(forward_graph(*NETWORKS[4]).to_json())
    assert {len(tensor) for tensor in document["tensors"]} == {7}


def test_fingerprints_tell_all_graphs_apart_and_repeat() -> None:
    first, second = ([g.fingerprint() for g in graphs()] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)


def test_fingerprint_sees_every_field() -> None:
    graph = training_graph(forward_graph(*NETWORKS[1]), SGD(momentum=0.9))
    op, tensor = graph.ops[0], graph.tensors[1]
    changed_ops = [
        replace(op, kind="linear"),
        replace(op, name="other"),
        replace(op, inputs=op.inputs[::-1]),
        replace(op, outputs=()),
        replace(op, attrs={**op.attrs, "groups": 7}),
        replace(op, updates=(1,)),
        replace(op, forward_op=5),
        replace(op, block=3),
    ]
    changed_tensors = [
        replace(tensor, name="other"),
        replace(tensor, shape=(9,)),
        replace(tensor, dtype="float64"),
        replace(tensor, nbytes=4096),
        replace(tensor, layout="blocked"),
        replace(tensor, initializer=None),
        replace(tensor, part=Slab("whole", (6, 1), 0)),
        replace(tensor, part=Slab("whole", (6, 1), 3)),
        replace(tensor, part=Slab("whole", (7, 1), 3)),
        replace(tensor, part=Slab("other", (7, 1), 3)),
    ]
    variants = [replace(graph, ops=(o, *graph.ops[1:])) for o in changed_ops]
    variants += [replace(graph, tensors=(graph.tensors[0], t, *graph.tensors[2:])) for t in changed_tensors]
    variants += [replace(graph, name="other"), replace(graph, outputs=()), replace(graph, layers=0), graph]
    assert len({v.fingerprint() for v in variants}) == len(variants)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 99}',
        json.dumps({"format": 1, "name": "n", "layers": 1, "tensors": [[1, 2]], "ops": [], "outputs": []}),
        json.dumps(
            {"format": 1, "name": "n", "layers": 1, "tensors": [], "outputs": []}
            | {"ops": [["relu", "r", [0], [1], [], [], "forward", 0, -1]]}
        ),
        json.dumps(
            {"format": 1, "name": "n", "layers": 1, "ops": [], "outputs": []}
            | {"tensors": [["w", [2], "float32", "parameter", 8, "", ["Unknown", {}]]]}
        ),
    ],
)
def test_what_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(GraphError, match="graph: expected"):
        Graph.from_json(text)


def test_readers_and_producers_are_each_other_s_inverse() -> None:
    for graph in graphs():
        readers, producers = graph.readers(), graph.producers()
        for tensor in graph.tensors:
            assert readers[tensor.id] == [op.id for op in graph.ops if tensor.id in op.inputs]
            makers = [op.id for op in graph.ops if tensor.id in op.outputs]
            assert makers == ([] if producers[tensor.id] == NO_OP else [producers[tensor.id]])


def test_signature_is_equal_exactly_for_operations_that_one_kernel_serves() -> None:
    graph = forward_graph(small_resnet(blocks=3), (2, 1, 8, 8))
    by_name = {op.name: graph.signature(op) for op in graph.ops if op.kind == "conv2d"}
    assert by_name["layer2.1.conv1"] == by_name["layer2.2.conv2"]
    assert by_name["layer2.1.conv1"] != by_name["layer2.0.conv1"]
    assert by_name["layer2.1.conv1"] != by_name["layer3.1.conv1"]
    wide = forward_graph(small_resnet(blocks=3), (2, 1, 8, 8), "float64")
    assert wide.signature(wide.ops[0]) != graph.signature(graph.ops[0])


def test_fingerprints_are_those_that_checkpoints_and_plans_hold():
    """Of a forward and a training graph, as they were before the optimizer's state had a role of that name."""
    layers = (Conv2d(4, 3), BatchNorm2d(), ReLU(), Dropout(0.2), Flatten(), Linear(3))
    forward = forward_graph(Sequential(*layers), (2, 3, 6, 6))
    assert forward.fingerprint() == ("980ea1e32d1e3742b273c9eaf9bd21e8933842f3d7fd1c60d59096284e40c4c7")
    assert training_graph(forward, SGD(0.1, momentum=0.9)).fingerprint() == (
        "e86e4a27eeec06665e4ec9a83e1fc381bd346e921a330480580cc191d6dd2fee"
    )
