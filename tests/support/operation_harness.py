"""Runs single operations of a backend in an arena and checks how they treat memory.

Operands lie at multiples of 64 with guard bytes between them, and everything else is filled with a pattern. After every
run the guards, all inputs that the operation does not overwrite, and the zeros in the padding of layouts must be as
they should. The harness serves every backend: values go through its `encode` and `decode`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bathyal.engine.backends.backend import NO_WORKSPACE, Kernel, Launch
from bathyal.layers.assembly import Assembly
from bathyal.layers.graph import FED, Graph, Op, Role, Tensor, TensorSpec
from bathyal.layers.initializers import initialize
from bathyal.layers.kinds import KINDS
from bathyal.memory.arena import Arena
from bathyal.memory.sizes import align_up

Array = npt.NDArray[Any]

ALIGNMENT = 64
GUARD_BYTES = 64
POISON = 0xFF
"""Every float of these bytes is a NaN."""


class Computing(Protocol):
    """What of a backend the harness needs."""

    def kernels(self, graph: Graph, op: Op) -> tuple[Kernel, ...]:
        """The kernels of an operation."""

    def bind(self, graph: Graph, op: Op, kernel: int, repeat: bool, arena: Arena) -> Launch:
        """What runs one of them."""

    def encode(self, tensor: Tensor, values: Array) -> npt.NDArray[np.uint8]:
        """Plain values as they lie in memory."""

    def decode(self, tensor: Tensor, content: npt.NDArray[np.uint8]) -> Array:
        """Undo `encode`."""


@dataclass(frozen=True)
class Result:
    """What a run left behind: outputs, and the inputs afterwards."""

    outputs: list[Array]
    inputs: list[Array]


@dataclass(frozen=True)
class Placement:
    """Where operands lie.

    Attributes:
        addresses: of each operand.
        guards: ranges (first, last) that nothing may touch, in order.
        end: behind the last guard.
    """

    addresses: list[int]
    guards: list[tuple[int, int]]
    end: int

    def check_guards(self, memory: Array, poison: int, what: str) -> None:
        """Assert that all guards still hold the pattern."""
        for first, last in self.guards:
            assert (memory[first:last] == poison).all(), f"{what} wrote outside its operands, near {first}"


def place(sizes: Sequence[int], shift: int = 0, shared: Mapping[int, int] | None = None) -> Placement:
    """Lay operands out one behind the other, with guards before, between and behind them.

    Args:
        sizes: bytes of each.
        shift: moves all of them by so many times 64 bytes.
        shared: position of an operand → position of an earlier one, at whose address it lies.
    """
    end = GUARD_BYTES * (1 + shift)
    addresses: list[int] = []
    guards = [(0, end)]
    for position, nbytes in enumerate(sizes):
        if shared and position in shared:
            addresses.append(addresses[shared[position]])
            continue
        addresses.append(end)
        last = end + nbytes
        end = align_up(last, ALIGNMENT) + GUARD_BYTES
        guards.append((last, end))
    return Placement(addresses, guards, end)


def relative_distance(ours: Array, exact: Array) -> float:
    """L2 norm of the difference over that of `exact`, in float64."""
    difference = np.linalg.norm(ours.astype(np.float64) - exact.astype(np.float64))
    return float(difference / (np.linalg.norm(exact.astype(np.float64)) or 1.0))


def read_content(backend: Computing, tensor: Tensor, content: npt.NDArray[np.uint8]) -> Array:
    """Plain values of what lies in memory, whose padding must be zero."""
    values = backend.decode(tensor, content)
    if tensor.layout:
        assert (backend.encode(tensor, values) == content).all(), f"the padding of {tensor.name} is not zero"
    return values


class OperationHarness:
    """One backend and one arena for many operations."""

    def __init__(self, backend: Computing, arena: Arena) -> None:
        self.backend = backend
        self.arena = arena

    def operation(
        self,
        kind: str,
        inputs: Sequence[Array],
        attrs: Mapping[str, Any],
        outputs: Sequence[TensorSpec] | None = None,
        *,
        updates: Sequence[int] = (),
        layouts: Sequence[str] | None = None,
    ) -> tuple[Graph, Op]:
        """A graph of one operation.

        Args:
            kind: its name.
            inputs: arrays of the inputs' shapes and types.
            attrs: of the operation.
            outputs: needed for kinds without a shape rule.
            updates: positions of the inputs that it overwrites.
            layouts: of inputs and outputs, such that a tensor takes the bytes of its plain layout; plain by default.
        """
        assembly = Assembly(kind)
        specs = [TensorSpec(a.shape, str(a.dtype)) for a in inputs]
        ids = [assembly.tensor(f"input{i}", s, Role.ACTIVATION) for i, s in enumerate(specs)]
        if outputs is None:
            shapes = KINDS[kind].shapes
            assert shapes is not None, f"{kind} has no shape rule: give the outputs"
            outputs = shapes(specs, attrs)
        made = [assembly.tensor(f"output{i}", s, Role.ACTIVATION) for i, s in enumerate(outputs)]
        op = assembly.op(kind, kind, ids, made, attrs, updates=[ids[i] for i in updates])
        graph = assembly.graph(made, 1)
        if layouts is not None:
            tensors = (replace(t, layout=name) for t, name in zip(graph.tensors, layouts, strict=True))
            graph = replace(graph, tensors=tuple(tensors))
        return graph, op

    def kernels(self, graph: Graph, op: Op) -> tuple[Kernel, ...]:
        """The kernels of an operation."""
        return self.backend.kernels(graph, op)

    def compute(
        self,
        kind: str,
        inputs: Sequence[Array],
        attrs: Mapping[str, Any] | None = None,
        outputs: Sequence[TensorSpec] | None = None,
        **options: Any,
    ) -> list[Array]:
        """Run one operation on plain layouts and return its outputs."""
        graph, op = self.operation(kind, inputs, attrs or {}, outputs)
        return self.run(graph, op, inputs, **options).outputs

    def run(
        self,
        graph: Graph,
        op: Op,
        inputs: Sequence[Array],
        *,
        kernel: int = 0,
        repeat: bool = False,
        kept: Sequence[Array] = (),
        alias: tuple[int, int] | None = None,
        poison: int = POISON,
        shift: int = 0,
        watch: Callable[[Launch, Sequence[int]], None] = lambda launch, addresses: launch(addresses),
    ) -> Result:
        """Run `op` once and check guards and inputs.

        Args:
            graph: that holds it.
            op: to run.
            inputs: plain values.
            kernel: its number.
            repeat: bind as a repeated run; the kept outputs are filled with `kept` first.
            kept: values of the outputs that the kind keeps.
            alias: (output, input) at one address.
            poison: the byte that fills everything else.
            shift: moves all operands by so many times 64 bytes.
            watch: calls the launch.
        """
        memory = self.arena.memory
        operands = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
        workspace = self.backend.kernels(graph, op)[kernel].workspace_bytes
        first_output = len(op.inputs)
        shared = {first_output + alias[0]: alias[1]} if alias else None
        placed = place([*(t.nbytes for t in operands), *([workspace] if workspace else [])], shift, shared)
        assert placed.end <= self.arena.nbytes, f"{op.kind} needs {placed.end} bytes of arena"
        addresses = placed.addresses if workspace else [*placed.addresses, NO_WORKSPACE]
        memory[: placed.end] = poison

        def content(position: int) -> npt.NDArray[np.uint8]:
            return memory[addresses[position] : addresses[position] + operands[position].nbytes]

        for position, values in enumerate(inputs):
            content(position)[:] = self.backend.encode(operands[position], values)
        for position, values in zip(KINDS[op.kind].kept if kept else (), kept, strict=bool(kept)):
            content(first_output + position)[:] = self.backend.encode(operands[first_output + position], values)
        overwritten = {op.inputs.index(t) for t in op.updates} | ({alias[1]} if alias else set())
        before = {p: content(p).copy() for p in range(first_output) if p not in overwritten}
        watch(self.backend.bind(graph, op, kernel, repeat, self.arena), addresses)
        placed.check_guards(memory, poison, op.kind)
        for position, bytes_before in before.items():
            assert (content(position) == bytes_before).all(), f"{op.kind} wrote its input {position}"
        left = [read_content(self.backend, t, content(i)) for i, t in enumerate(operands)]
        return Result(left[first_output:], left[:first_output])

    def interpret(self, graph: Graph, feeds: Mapping[str, Array], seed: int = 0) -> list[Array]:
        """Run all operations in order; returns the values of every tensor as each operation found or left them."""
        values = [
            feeds[t.name]
            if t.role in FED
            else initialize(t.initializer, t.shape, t.dtype, seed=seed, name=t.name)
            if t.initializer
            else np.zeros(t.shape, t.dtype)
            for t in graph.tensors
        ]
        for op in graph.ops:
            result = self.run(graph, op, [values[t] for t in op.inputs])
            for tensor, made in zip((*op.inputs, *op.outputs), (*result.inputs, *result.outputs), strict=True):
                values[tensor] = made
        return values
