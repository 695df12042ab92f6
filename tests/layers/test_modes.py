"""The graphs of training and evaluation: what must hold for every network, checked on random ones too."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bathyal.layers import (
    SGD,
    Add,
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    Graph,
    Identity,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Op,
    Phase,
    ReLU,
    Residual,
    Role,
    Sequential,
    Sigmoid,
    Tanh,
    evaluation_graph,
    forward_graph,
    prediction_graph,
    training_graph,
)
from bathyal.layers.graph import FED, STATE
from bathyal.layers.kinds import KINDS
from bathyal.models import alexnet, resnet18, small_resnet, vgg11

SHAPE = (2, 3, 6, 6)
WITHOUT_OPERATION = {"add"}
"""Kinds whose gradient is the gradient of the output itself."""


def convolution(channels: int) -> st.SearchStrategy[Layer]:
    return st.builds(Conv2d, st.just(channels), st.just(3), padding=st.just(1), bias=st.booleans())


def same_shape(channels: int) -> st.SearchStrategy[Layer]:
    simple = st.one_of(
        st.sampled_from([ReLU(), Sigmoid(), Tanh(), LocalResponseNorm(3), Dropout(0.4), Identity()]),
        st.builds(MaxPool2d, st.just(3), st.just(1), st.just(1)),
        st.builds(AvgPool2d, st.just(3), st.just(1), st.just(1)),
        st.builds(BatchNorm2d),
        convolution(channels),
    )

    def around(inner: st.SearchStrategy[Layer]) -> st.SearchStrategy[Layer]:
        several = st.lists(inner, min_size=1, max_size=3).map(lambda layers: Sequential(*layers))
        branches = st.lists(inner, min_size=2, max_size=3)
        return st.one_of(
            several,
            st.builds(Residual, several, st.none() | inner, st.none() | st.just(ReLU())),
            branches.map(lambda layers: Branches(*layers, merge=Add())),
            branches.map(lambda layers: Sequential(Branches(*layers, merge=Concat()), Conv2d(channels, 1))),
        )

    return st.recursive(simple, around, max_leaves=6)


networks = st.lists(same_shape(3), min_size=1, max_size=4).map(
    lambda layers: Sequential(*layers, Flatten(), Linear(4), name="random")
)


def needs_gradient(graph: Graph) -> set[int]:
    """Tensors that a parameter comes before, by a search of its own from the parameters forward."""
    reached = {t.id for t in graph.with_role(Role.PARAMETER)}
    grown = True
    while grown:
        made = {t for op in graph.ops if op.phase is Phase.FORWARD and reached & set(op.inputs) for t in op.outputs}
        grown = not made <= reached
        reached |= made
    return reached


def check_order(graph: Graph) -> None:
    """Every operand is there before it is read, and is made once."""
    there = {t.id for t in graph.with_role(*FED, *STATE)}
    for index, tensor in enumerate(graph.tensors):
        assert tensor.id == index
    for index, op in enumerate(graph.ops):
        assert op.id == index
        assert op.kind in KINDS
        assert set(op.inputs) <= there, f"{op.kind} {op.name} reads what is not there yet"
        assert not set(op.outputs) & there
        assert set(op.updates) <= set(op.inputs)
        there |= set(op.outputs)
    assert there == set(range(len(graph.tensors)))
    assert len({t.name for t in graph.tensors}) == len(graph.tensors)


def check_phases(graph: Graph) -> None:
    """Forward, then the loss, then backward and updates, in reverse order of the forward operations."""
    phases = [op.phase for op in graph.ops]
    loss = phases.index(Phase.LOSS)
    assert set(phases[:loss]) == {Phase.FORWARD}
    assert set(phases[loss + 1 :]) <= {Phase.BACKWARD, Phase.UPDATE}
    assert all(op.forward_op == op.id for op in graph.ops[: loss + 1])
    served = [op.forward_op for op in graph.ops[loss + 1 :]]
    assert served == sorted(served, reverse=True)
    assert served[0] == loss


def check_gradients(graph: Graph) -> None:
    """Every forward operation behind a parameter has its gradient, shaped like what it is the gradient of."""
    needs = needs_gradient(graph)
    served: dict[int, list[Op]] = {}
    for op in graph.ops:
        if op.phase is Phase.BACKWARD:
            served.setdefault(op.forward_op, []).append(op)
    for op in graph.ops:
        if op.phase is Phase.FORWARD and op.kind not in WITHOUT_OPERATION | {"batch_norm_update"}:
            assert bool(served.get(op.id)) == bool(needs & set(op.inputs)), op
    by_name = {t.name: t for t in graph.tensors}
    assert "images.gradient" not in by_name or any(op.kind in ("batch_norm_backward", "split") for op in graph.ops)
    for tensor in graph.with_role(Role.GRADIENT):
        of = by_name[tensor.name.partition("#")[0].removesuffix(".gradient")]
        assert (tensor.shape, tensor.dtype) == (of.shape, of.dtype)


def check_fork_sums(graph: Graph) -> None:
    """A tensor with k readers that send gradients is summed by k − 1 additions, two at a time."""
    needs = needs_gradient(graph)
    uses = Counter(
        tensor
        for op in graph.ops
        if op.phase in (Phase.FORWARD, Phase.LOSS) and op.kind != "batch_norm_update"
        for tensor in op.inputs
        if tensor in needs
    )
    additions = [op for op in graph.ops if op.phase is Phase.BACKWARD and op.kind == "add"]
    assert len(additions) == sum(k - 1 for k in uses.values())
    assert all(len(op.inputs) == 2 and len(op.outputs) == 1 for op in additions)


def check_updates(graph: Graph, momentum: bool) -> None:
    """Each parameter is updated once, after the last reader of its old value and before the next backward operation."""
    readers = graph.readers()
    updates = {op.updates[0]: op for op in graph.ops if op.kind == "sgd_update"}
    assert sum(op.kind == "sgd_update" for op in graph.ops) == len(updates)
    assert set(updates) == {t.id for t in graph.with_role(Role.PARAMETER)}
    producers = graph.producers()
    for parameter, op in updates.items():
        assert op.phase is Phase.UPDATE
        assert readers[parameter][-1] == op.id, "an old value is read after its update"
        gradient = op.inputs[1]
        assert graph.tensors[gradient].shape == graph.tensors[parameter].shape
        assert readers[gradient] == [op.id], "the gradient dies with the update"
        ready = max(producers[gradient], readers[parameter][-2])
        assert all(graph.ops[i].forward_op == op.forward_op for i in range(ready, op.id)), "an update that waits"
        kept = [graph.tensors[t] for t in op.updates[1:]]
        assert [t.role for t in kept] == ([Role.OPTIMIZER] if momentum else [])
    assert len(graph.with_role(Role.OPTIMIZER)) == (len(updates) if momentum else 0)


def check_batch_norm(forward: Graph, graph: Graph) -> None:
    """One operation for the outputs and one for the running statistics per batch norm."""
    layers = Counter(op.name for op in forward.ops if op.kind == "batch_norm")
    for kind in ("batch_norm_training", "batch_norm_update"):
        assert Counter(op.name for op in graph.ops if op.kind == kind) == layers
    written = Counter(t for op in graph.ops if op.kind == "batch_norm_update" for t in op.updates)
    assert written == Counter(t.id for t in graph.with_role(Role.BUFFER))
    assert not any(op.kind == "batch_norm" for op in graph.ops)


def check_evaluation(forward: Graph, graph: Graph) -> None:
    """No dropout, no batch statistics, nothing written."""
    kinds = Counter(op.kind for op in graph.ops)
    expected = Counter(op.kind for op in forward.ops)
    expected["batch_norm_inference"] = expected.pop("batch_norm", 0)
    expected.pop("dropout", None)
    kinds.pop("softmax_cross_entropy", None)
    assert kinds == +expected
    assert not any(op.updates for op in graph.ops)
    assert {t.name for t in graph.with_role(Role.SCALARS, Role.OPTIMIZER, Role.GRADIENT)} == set()


def check_all(network: Layer, shape: tuple[int, ...]) -> None:
    forward = forward_graph(network, shape)
    check_order(forward)
    for optimizer in (SGD(), SGD(momentum=0.9, weight_decay=0.1, nesterov=True)):
        graph = training_graph(forward, optimizer)
        check_order(graph)
        check_phases(graph)
        check_gradients(graph)
        check_fork_sums(graph)
        check_updates(graph, optimizer.momentum > 0)
        check_batch_norm(forward, graph)
        assert [graph.tensors[t].name for t in graph.outputs] == ["loss", "correct"]
        assert Graph.from_json(graph.to_json()) == graph
    for graph, outputs in ((evaluation_graph(forward), 2), (prediction_graph(forward), 1)):
        check_order(graph)
        check_evaluation(forward, graph)
        assert len(graph.outputs) == outputs


@settings(max_examples=150, deadline=None)
@given(networks)
def test_random_networks(network: Layer) -> None:
    check_all(network, SHAPE)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (alexnet(10, variant="paper"), (2, 3, 64, 64)),
        (vgg11(10, batch_norm=True), (2, 3, 32, 32)),
        (resnet18(10), (2, 3, 32, 32)),
        (small_resnet(), (2, 1, 8, 8)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_bundled_networks(network: Layer, shape: tuple[int, ...]) -> None:
    check_all(network, shape)


def test_dropout_has_a_stream_of_its_own_and_its_gradient_draws_the_same() -> None:
    graph = training_graph(forward_graph(alexnet(10), (2, 3, 64, 64)), SGD())
    forward = [op for op in graph.ops if op.kind == "dropout_training"]
    assert sorted(op.attrs["stream"] for op in forward) == [0, 1]
    backward = {op.forward_op: op for op in graph.ops if op.kind == "dropout_backward"}
    # The first one has no parameter before it in the classifier, but convolutions before that.
    assert set(backward) == {op.id for op in forward}
    for op in forward:
        assert backward[op.id].attrs == op.attrs
        assert backward[op.id].inputs[1] == op.inputs[1]


def test_sum_of_a_tensor_with_itself_doubles_its_gradient() -> None:
    net = Sequential(Conv2d(3, 1, name="conv"), Branches(Identity(), Identity(), merge=Add()), Flatten(), Linear(2))
    graph = training_graph(forward_graph(net, (2, 3, 2, 2)), SGD())
    (addition,) = [op for op in graph.ops if op.kind == "add" and op.phase is Phase.BACKWARD]
    assert addition.inputs[0] == addition.inputs[1]


def test_sums_follow_the_order_of_the_graph_from_the_last_reader() -> None:
    net = Sequential(
        Conv2d(3, 1, name="conv"),
        Branches(ReLU(name="a"), Tanh(name="b"), Sigmoid(name="c"), merge=Concat()),
        Flatten(),
        Linear(2),
    )
    graph = training_graph(forward_graph(net, (2, 3, 2, 2)), SGD())
    producers = graph.producers()
    first, second = (op for op in graph.ops if op.kind == "add")
    assert [graph.ops[producers[t]].kind for t in first.inputs] == ["sigmoid_backward", "tanh_backward"]
    assert [graph.ops[producers[t]].kind for t in second.inputs] == ["add", "relu_backward"]
