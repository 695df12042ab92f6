"""What a backend lacks is named, with its layer, before anything is planned."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.backends.cuda.backend import CudaBackend
from bathyal.engine.backends.null import NullBackend
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.backends.registry import BACKENDS
from bathyal.engine.planning.lowering import COMPUTING, lower
from bathyal.layers import SGD, Flatten, Linear, Sequential, evaluation_graph, forward_graph, training_graph
from bathyal.layers.graph import Op
from bathyal.layers.kinds import KINDS
from bathyal.layers.operations import OpKind, same_as_first
from bathyal.memory.devices.host import HostMachine
from bathyal.memory.errors import ConfigError, GraphError

HALVE = OpKind("own_halve", same_as_first, lambda builder, op, dy: builder.emit("own_halve", dy, op.inputs, op.attrs))


@dataclass(frozen=True)
class Halve(bt.Layer):
    """y = x / 2."""

    def build(self, builder, x):
        return builder.apply(HALVE, (x,))


NETWORK = Sequential(Linear(4), Halve(name="half"), Linear(3), name="small")


@pytest.fixture
def halve():
    bt.register_operation(HALVE, run=lambda x, y: np.multiply(x, 0.5, out=y))
    yield
    bt.unregister_operation("own_halve")


def step():
    return training_graph(forward_graph(NETWORK, (2, 5)), SGD(0.1))


def cuda():
    """Lowers; there is no library that would compute."""
    return CudaBackend(None, HostMachine())


def test_a_backend_without_a_kernel_names_layer_kind_and_the_backends_that_have_one(halve):
    with pytest.raises(ConfigError) as refused:
        lower(step(), cuda())
    assert refused.value.where == "half (own_halve)"
    assert "'cuda'" in refused.value.expected and "'own_halve'" in refused.value.actual
    assert refused.value.hint == "Give a device that has one: onednn, reference."


def test_an_evaluation_graph_is_refused_too(halve):
    with pytest.raises(ConfigError, match="'cuda' has a kernel for"):
        lower(evaluation_graph(forward_graph(NETWORK, (2, 5))), cuda())


def test_a_kind_that_no_backend_computes_says_so():
    """A kind that every mode replaces needs no kernel, but must not be left in a graph."""
    kind = OpKind("own_gone", same_as_first, training=lambda b, op, x: x[0], evaluation=lambda b, op, x: x[0])
    bt.register_operation(kind)
    try:
        assert not any(backend.computes("own_gone") for backend in COMPUTING)
        graph = forward_graph(Sequential(Flatten(), Linear(3)), (2, 5))
        left = replace(graph, ops=(*graph.ops, Op(2, "own_gone", "bare", (graph.outputs[0],), ())))
        with pytest.raises(ConfigError, match=r"bare \(own_gone\).*No device has one"):
            lower(left, ReferenceBackend())
    finally:
        bt.unregister_operation("own_gone")


def test_an_unregistered_kind_is_named_with_its_layer():
    forward = forward_graph(NETWORK, (2, 5))
    with pytest.raises(GraphError, match=r"half \(own_halve\).*register_operation"):
        training_graph(forward, SGD(0.1))
    with pytest.raises(GraphError, match=r"half \(own_halve\)"):
        lower(forward, NullBackend())


def test_a_gradient_rule_that_emits_an_unregistered_kind_is_named_with_its_layer(halve):
    def backward(builder, op, gradients):
        return builder.emit("own_halve_backward", gradients, op.inputs, op.attrs)

    other = OpKind("own_halve2", same_as_first, backward)

    @dataclass(frozen=True)
    class Other(bt.Layer):
        def build(self, builder, x):
            return builder.apply(other, (x,))

    bt.register_operation(other, run=lambda x, y: np.multiply(x, 0.5, out=y))
    try:
        graph = training_graph(forward_graph(Sequential(Linear(4), Other(name="odd"), Linear(3)), (2, 5)), SGD(0.1))
        with pytest.raises(GraphError, match=r"odd \(own_halve_backward\)"):
            lower(graph, ReferenceBackend())
    finally:
        bt.unregister_operation("own_halve2")


def test_the_trainer_refuses_before_it_takes_memory(halve, monkeypatch):
    from bathyal.memory.arena import Arena

    committed = []
    monkeypatch.setattr(Arena, "commit", lambda self, nbytes: committed.append(nbytes))
    monkeypatch.setattr(ReferenceBackend, "computes", staticmethod(lambda kind: kind != "own_halve"))
    with (
        bt.Trainer(NETWORK, (2, 5), optimizer=SGD(0.1), memory="1 MiB", device="reference") as trainer,
        pytest.raises(ConfigError, match=r"half \(own_halve\)"),
    ):
        _ = trainer.plan
    assert not committed


def test_every_kind_of_the_package_is_computed_by_those_that_have_no_other_to_fall_back_on():
    """What the oracle lacks is what lowering inserts, for the backends that insert it."""
    lacking = {name for name in KINDS if KINDS[name].needs_kernels and not ReferenceBackend.computes(name)}
    assert all(any(backend.computes(name) for backend in COMPUTING) for name in lacking)
    assert {backend.name for backend in COMPUTING} == set(BACKENDS) - {"null", "auto"}
