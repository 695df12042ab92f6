"""Runs a lowered graph one operation at a time and compares every tensor with the reference backend's.

Each operation gets the reference's values as its inputs (or noise, as gradients), so that an error is found where it
arises. Every tensor of the graph has its own place, laid out and guarded as `operation_harness.py` does it, and the
workspace is NaN before every run.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bathyal.engine.backends.backend import NO_WORKSPACE, Backend
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.planning.lowering import lower
from bathyal.layers import SGD, Layer, forward_graph, training_graph
from bathyal.layers.graph import FED, Graph, Op, Role, Tensor
from bathyal.layers.initializers import initialize
from bathyal.layers.kinds import KINDS
from bathyal.memory.arena import Arena
from bathyal.memory.sizes import align_up
from tests.support.operation_harness import ALIGNMENT, GUARD_BYTES, POISON, place, read_content, relative_distance

Array = npt.NDArray[Any]

TOLERANCE = 1e-5


def lower_step(network: Layer, shape: tuple[int, ...], backend: Backend) -> Graph:
    """A training step with momentum, as a backend lowers it."""
    return lower(training_graph(forward_graph(network, shape), SGD(0.1, momentum=0.9)), backend)


def noise(seed: int, shape: tuple[int, ...]) -> Array:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Memory:
    """Every tensor of a lowered graph at its own place, and a workspace behind them."""

    def __init__(self, graph: Graph, backend: Backend, shift: int = 0) -> None:
        self.graph, self.backend = graph, backend
        self.workspace_bytes = max(
            (k.workspace_bytes for op in graph.ops for k in backend.kernels(graph, op)), default=0
        )
        self._placement = place([t.nbytes for t in graph.tensors], shift)
        self.addresses = self._placement.addresses
        self.workspace = self._placement.end
        self.arena = Arena(align_up(self.workspace + self.workspace_bytes, ALIGNMENT) + GUARD_BYTES)
        self.arena.poison(POISON, 0, self.arena.nbytes)

    def content(self, tensor: int) -> Array:
        """The bytes of a tensor; a view."""
        address = self.addresses[tensor]
        return self.arena.memory[address : address + self.graph.tensors[tensor].nbytes]

    def read(self, tensor: int) -> Array:
        """Plain values of a tensor, whose padding must be zero."""
        return read_content(self.backend, self.graph.tensors[tensor], self.content(tensor))

    def write(self, tensor: int, values: Array) -> None:
        """Overwrite a tensor with plain values."""
        self.content(tensor)[:] = self.backend.encode(self.graph.tensors[tensor], values)

    def run(self, op: Op, kernel: int = 0, repeat: bool = False) -> None:
        """Run one operation and check that it writes nothing but what it should."""
        nbytes = self.backend.kernels(self.graph, op)[kernel].workspace_bytes
        self.arena.memory[self.workspace :] = POISON
        kept = [op.outputs[i] for i in KINDS[op.kind].kept] if repeat else []
        unchanged = [t for t in (*op.inputs, *kept) if t not in op.updates]
        before = [self.content(t).copy() for t in unchanged]
        launch = self.backend.bind(self.graph, op, kernel, repeat, self.arena)
        places = [self.addresses[t] for t in (*op.inputs, *op.outputs)]
        launch([*places, self.workspace if nbytes else NO_WORKSPACE])
        self._placement.check_guards(self.arena.memory, POISON, op.kind)
        beyond = self.arena.memory[self.workspace + nbytes :]
        assert (beyond == POISON).all(), f"{op.kind} wrote beyond its workspace of {nbytes} bytes"
        for tensor, content in zip(unchanged, before, strict=True):
            assert (self.content(tensor) == content).all(), f"{op.kind} wrote {self.graph.tensors[tensor].name}"


def first_values(tensor: Tensor, feeds: Mapping[str, Array], seed: int) -> Array | None:
    """What a fed tensor or one of the state holds at first; None for all others."""
    if tensor.role in FED:
        return feeds[tensor.name]
    if tensor.initializer is not None:
        values = initialize(tensor.initializer, tensor.shape, tensor.dtype, seed=seed, name=tensor.name)
        # Biases start at 0 and scales at 1: other values tell them apart.
        return values + np.random.default_rng(tensor.id).uniform(0.1, 0.3, tensor.shape).astype(tensor.dtype)
    return np.zeros(tensor.shape, tensor.dtype) if tensor.role is Role.OPTIMIZER else None


def next_values(tensor: Tensor, exact: Array) -> Array:
    """What the operations after it find: its values, or noise for a gradient.

    True gradients may be differences of almost equal sums, as that of a bias before a batch norm, and have no digits.
    """
    if tensor.role is not Role.GRADIENT:
        return exact
    return np.random.default_rng(tensor.id).standard_normal(tensor.shape).astype(tensor.dtype)


def reference_values(
    graph: Graph, feeds: Mapping[str, Array], seed: int, known: Container[str]
) -> Iterator[dict[str, Array]]:
    """Run the plain graph on the reference backend; for each operation, by name, what it makes or updates.

    A gradient that is not among the `known` names goes as it is to the operation that reads it: the backend under test
    computes both at once.
    """
    memory = Memory(graph, ReferenceBackend())
    for tensor in graph.tensors:
        values = first_values(tensor, feeds, seed)
        if values is not None:
            memory.write(tensor.id, values)
    for op in graph.ops:
        memory.run(op)
        yield {graph.tensors[t].name: memory.read(t) for t in (*op.outputs, *op.updates)}
        for tensor in op.outputs:
            if graph.tensors[tensor].name in known:
                memory.write(tensor, next_values(graph.tensors[tensor], memory.read(tensor)))


def check_operations(
    graph: Graph,
    backend: Backend,
    feeds: Mapping[str, Array],
    *,
    choose: Callable[[Graph, Op], int] = lambda graph, op: 0,
    shift: int = 0,
    seed: int = 3,
    tolerance: float = TOLERANCE,
) -> dict[str, float]:
    """Compare every operation of `graph`, lowered by `backend`, with the reference backend.

    Args:
        graph: plain, not lowered.
        choose: the kernel of an operation of the lowered graph.
        shift: moves all tensors by so many times 64 bytes.

    Returns:
        The largest relative L2 distance for each kind of operation; 0 for conversions, which must be exact.
    """
    lowered = lower(graph, backend)
    memory = Memory(lowered, backend, shift)
    plain = {t.name: t for t in graph.tensors}
    for tensor in lowered.tensors:
        values = first_values(plain[tensor.name], feeds, seed) if tensor.name in plain else None
        if values is not None:
            memory.write(tensor.id, values)
    reference = reference_values(graph, feeds, seed, {t.name for t in lowered.tensors})
    exact: dict[str, Array] = {}
    found: dict[str, float] = {}
    kind = ""

    def compare(tensor: int) -> None:
        name = lowered.tensors[tensor].name
        if name not in plain:
            return  # a copy in another layout, or what is kept in a form of the backend's own
        while name not in exact:
            exact.update(next(reference))
        if exact[name].dtype not in (np.float32, np.float64):
            return  # where a maximum was is kept in a form of the backend's own
        distance = relative_distance(memory.read(tensor), exact[name])
        found[kind] = max(found.get(kind, 0.0), distance)
        assert distance <= tolerance, f"{kind} ({name}): {distance:.3g}"
        memory.write(tensor, next_values(plain[name], exact[name]))

    for op in lowered.ops:
        if op.kind == "convert":
            memory.run(op)
            source, target = op.inputs[0], op.outputs[0]
            np.testing.assert_array_equal(memory.read(source), memory.read(target), f"conversion for {op.name}")
            found["convert"] = 0.0
            compare(target)
            continue
        kind = op.kind
        memory.run(op, choose(lowered, op))
        for tensor in (*op.updates, *op.outputs):
            compare(tensor)
    assert next(reference, None) is None, "operations that were not compared"
    return found
