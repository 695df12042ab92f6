"""What a loss declares, and what follows from it in the graph: target, metrics, what it saves, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from bathyal.layers import (
    SGD,
    Conv2d,
    CrossEntropy,
    Flatten,
    Linear,
    Phase,
    Role,
    Sequential,
    Target,
    evaluation_graph,
    forward_graph,
    training_graph,
)
from bathyal.layers.graph import Graph, Op, TensorSpec
from bathyal.layers.kinds import KINDS
from bathyal.layers.losses.loss import find_target, require_loss
from bathyal.layers.operations import BackwardBuilder, OpKind, ShapeRule
from bathyal.memory.errors import ConfigError, GraphError, ShapeError

VECTORS = Sequential(Flatten(), Linear(5))
IMAGES = Sequential(Conv2d(5, 1))


@dataclass(frozen=True)
class Saving:
    """Any loss of outputs of any shape that counts one thing and saves a tensor; nothing here computes it."""

    kind: str = "own_saving"
    attrs: Any = field(default_factory=lambda: {"delta": 0.5})
    metrics: Any = ("close",)
    emits: str = "own_saving_backward"

    def target(self, output: TensorSpec) -> Target:
        if output.shape[0] > 3:
            raise ShapeRule("at most 3 samples", str(output.shape[0]))
        return Target(output.shape, output.dtype)

    def gradient(self, builder: BackwardBuilder, op: Op, scalars: int) -> int:
        if self.emits == "nothing":
            return op.outputs[2]
        like = op.inputs[0] if self.emits == "own_saving_backward" else op.outputs[0]
        return builder.emit("own_saving_backward", (op.outputs[2], scalars), (like,), op.attrs)[0]


def _shapes(inputs: Any, attrs: Any) -> tuple[TensorSpec, ...]:
    return TensorSpec((1,), "float32"), TensorSpec((1,), "int64"), inputs[0]


def _no_loss(inputs: Any, attrs: Any) -> tuple[TensorSpec, ...]:
    return inputs[0], TensorSpec((1,), "int64")


@pytest.fixture(autouse=True)
def own_kinds() -> Iterator[None]:
    """The kinds of the losses here are registered as long as a test runs."""
    own = (OpKind("own_saving", _shapes), OpKind("own_saving_backward"), OpKind("own_no_loss", _no_loss))
    for kind in own:
        KINDS.add(kind.name, kind)
    yield
    for kind in own:
        KINDS.remove(kind.name)


def graph_of(network: Any, loss: Any, batch: int = 2) -> Graph:
    return training_graph(forward_graph(network, (batch, 3, 4, 4)), SGD(), loss)


def test_cross_entropy_is_the_default_and_its_labels_are_classes() -> None:
    assert graph_of(VECTORS, CrossEntropy()) == training_graph(forward_graph(VECTORS, (2, 3, 4, 4)), SGD())
    assert CrossEntropy().target(TensorSpec((2, 5), "float64")) == Target((2,), "int64", 5)
    assert CrossEntropy() == CrossEntropy() and CrossEntropy().metrics == ("top1", "top5")


def test_cross_entropy_refuses_what_is_no_logits() -> None:
    with pytest.raises(ShapeError, match=r"loss: expected logits of shape \(N, classes\), got .*Flatten\(\)"):
        graph_of(IMAGES, CrossEntropy())
    with pytest.raises(ShapeError, match="loss: expected at most 3 samples, got 4"):
        find_target(Saving(), TensorSpec((4, 5), "float32"))


@pytest.mark.parametrize("network", [VECTORS, IMAGES])
def test_the_graph_follows_from_what_the_loss_declares(network: Any) -> None:
    graph = graph_of(network, Saving())
    (loss,) = (op for op in graph.ops if op.phase is Phase.LOSS)
    output, target = (graph.tensors[t] for t in loss.inputs)
    assert (target.name, target.role, target.spec) == ("labels", Role.LABEL, output.spec)
    made = [(graph.tensors[t].name, graph.tensors[t].role) for t in loss.outputs]
    assert made == [("loss", Role.METRIC), ("correct", Role.METRIC), ("loss.saved0", Role.ACTIVATION)]
    assert [graph.tensors[t].name for t in graph.outputs] == ["loss", "correct"]
    assert dict(loss.attrs) == {"delta": 0.5}
    gradient = graph.ops[loss.id + 1]
    assert gradient.inputs[0] == loss.outputs[2] and gradient.forward_op == loss.id
    assert graph.tensors[gradient.outputs[0]].spec == output.spec


def test_evaluation_reads_what_training_reads() -> None:
    graph = evaluation_graph(forward_graph(VECTORS, (2, 3, 4, 4)), Saving())
    assert [graph.tensors[t].name for t in graph.outputs] == ["loss", "correct"]
    (target,) = graph.with_role(Role.LABEL)
    assert target.shape == (2, 5)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            Saving(kind="own_no_loss"),
            r"loss \(own_no_loss\): expected outputs of shape \(1,\), \(1,\) int64, got \(2, 5\)",
        ),
        (
            Saving(metrics=("close", "far")),
            r"expected outputs of shape \(1,\), \(2,\) int64, got \(1,\) float32, \(1,\)",
        ),
        (Saving(emits="nothing"), r"expected a gradient of shape \(2, 5\) .*, got loss.saved0"),
        (Saving(emits="loss"), r"expected a gradient of shape \(2, 5\) .*, got loss.gradient, \(1,\)"),
    ],
)
def test_a_loss_that_makes_what_it_may_not_is_refused(loss: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph_of(VECTORS, loss)


@pytest.mark.parametrize("found", [None, (2, 5), Target((3, 5), "float32")])
def test_a_target_that_is_none_for_the_samples_is_refused(found: Any) -> None:
    loss = type("Wrong", (Saving,), {"target": lambda self, output: found})()
    with pytest.raises(ConfigError, match=r"Wrong.target: expected a Target with a first axis of 2 samples, got"):
        graph_of(VECTORS, loss)


class Bare:
    """An object with a part of what a loss has."""

    kind = "softmax_cross_entropy"
    metrics = ()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("mse", "loss: expected an object such as .*, got 'mse' without kind, attrs, metrics, target, gradient"),
        (CrossEntropy, "got the class CrossEntropy. Call the class"),
        (Bare(), "without attrs, target, gradient"),
        (Saving(kind="squared"), r"Saving.kind: .*registered kind of operation, got 'squared'. .*register_operation"),
        (Saving(kind="own_saving_backward"), "Saving.kind: expected a kind of operation with a shape rule"),
        (Saving(attrs={"delta": {1}}), r"Saving.attrs: .*'delta': a set"),
        (Saving(metrics="close"), "Saving.metrics: expected names that are identifiers"),
        (Saving(metrics=("a", "a")), "Saving.metrics: expected names that are given once"),
    ],
)
def test_what_is_missing_is_said(loss: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_loss(loss, KINDS)


def test_losses_that_have_all_members_are_taken() -> None:
    require_loss(CrossEntropy(), KINDS)
    require_loss(Saving(), KINDS)
