"""Runs single operations of a backend in a small arena and checks how they treat memory.

Operands lie at multiples of 64 with guard bytes between them, everything else is filled with a pattern. After every
run the guards, and all inputs that the operation does not overwrite, must be as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bathyal.engine.backends.backend import NO_WORKSPACE, Kernel, Launch
from bathyal.engine.backends.reference import ReferenceBackend
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
    GlobalAvgPool2d,
    Graph,
    Identity,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Op,
    ReLU,
    Role,
    Sequential,
    Sigmoid,
    Tanh,
    evaluation_graph,
    forward_graph,
    prediction_graph,
    training_graph,
)
from bathyal.layers.assembly import Assembly
from bathyal.layers.graph import FED, TensorSpec
from bathyal.layers.initializers import initialize
from bathyal.layers.kinds import KINDS
from bathyal.layers.modes import LABELS, RANDOM_KEY, SCALARS
from bathyal.memory.arena import Arena

Array = npt.NDArray[Any]

GUARD_BYTES = 64
ARENA_BYTES = 32 * 2**20
POISON = 0xFF
"""Every float of these bytes is a NaN."""


@dataclass(frozen=True)
class Result:
    """What a run left behind: outputs, and the inputs afterwards."""

    outputs: list[Array]
    inputs: list[Array]


class OperationHarness:
    """One backend and one arena for many operations."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.backend = ReferenceBackend()

    def operation(
        self, kind: str, inputs: Sequence[Array], attrs: Mapping[str, Any], outputs: Sequence[TensorSpec] | None = None
    ) -> tuple[Graph, Op]:
        """A graph of one operation; `outputs` are needed for kinds without a shape rule."""
        assembly = Assembly(kind)
        specs = [TensorSpec(a.shape, str(a.dtype)) for a in inputs]
        ids = [assembly.tensor(f"input{i}", s, Role.ACTIVATION) for i, s in enumerate(specs)]
        if outputs is None:
            shapes = KINDS[kind].shapes
            assert shapes is not None, f"{kind} has no shape rule: give the outputs"
            outputs = shapes(specs, attrs)
        made = [assembly.tensor(f"output{i}", s, Role.ACTIVATION) for i, s in enumerate(outputs)]
        updates = {"batch_norm_update": ids[2:], "sgd_update": [ids[0], *ids[2:-1]]}.get(kind, [])
        op = assembly.op(kind, kind, ids, made, attrs, updates=updates)
        return assembly.graph(made, 1), op

    def kernels(self, graph: Graph, op: Op) -> tuple[Kernel, ...]:
        return self.backend.kernels(graph, op)

    def compute(
        self,
        kind: str,
        inputs: Sequence[Array],
        attrs: Mapping[str, Any] | None = None,
        outputs: Sequence[TensorSpec] | None = None,
        **options: Any,
    ) -> list[Array]:
        """Run one operation and return its outputs."""
        graph, op = self.operation(kind, inputs, attrs or {}, outputs)
        return self.run(graph, op, inputs, **options).outputs

    def place(
        self, graph: Graph, op: Op, kernel: int, alias: tuple[int, int] | None, shift: int
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Addresses for inputs, outputs and workspace, and the ranges that nothing may touch."""
        addresses: list[int] = []
        guards: list[tuple[int, int]] = []
        end = GUARD_BYTES * (1 + shift)

        def reserve(nbytes: int) -> int:
            nonlocal end
            address, last = end, end + nbytes
            end = -(-last // 64) * 64 + GUARD_BYTES
            guards.append((last, end))
            return address

        for tensor in op.inputs:
            addresses.append(reserve(graph.tensors[tensor].nbytes))
        for position, tensor in enumerate(op.outputs):
            shared = alias is not None and alias[0] == position
            addresses.append(addresses[alias[1]] if shared and alias else reserve(graph.tensors[tensor].nbytes))
        workspace = self.backend.kernels(graph, op)[kernel].workspace_bytes
        addresses.append(reserve(workspace) if workspace else NO_WORKSPACE)
        guards.append((0, GUARD_BYTES * (1 + shift)))
        assert end <= self.arena.nbytes, f"{op.kind} needs {end} bytes of arena"
        return addresses, guards

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
            repeat: bind as a repeated run; the kept outputs are filled with `kept` first.
            alias: (output, input) at one address.
            poison: the byte that fills everything else.
            shift: moves all operands by so many times 64 bytes.
            watch: calls the launch.
        """
        memory = self.arena.memory
        addresses, guards = self.place(graph, op, kernel, alias, shift)
        last = max(b for _, b in guards)
        memory[:last] = poison
        for tensor, address, values in zip(op.inputs, addresses, inputs, strict=False):
            self._view(graph, tensor, address)[...] = values
        first_output = len(op.inputs)
        for position, values in zip(KINDS[op.kind].kept, kept, strict=False):
            self._view(graph, op.outputs[position], addresses[first_output + position])[...] = values
        launch = self.backend.bind(graph, op, kernel, repeat, self.arena)
        watch(launch, addresses)
        for first, end in guards:
            assert (memory[first:end] == poison).all(), f"{op.kind} wrote outside its operands, near {first}"
        left = [self._view(graph, t, a).copy() for t, a in zip(op.inputs, addresses, strict=False)]
        for position, (tensor, before, after) in enumerate(zip(op.inputs, inputs, left, strict=True)):
            if tensor not in op.updates and (alias is None or alias[1] != position):
                np.testing.assert_array_equal(after, before, f"{op.kind} wrote its input {position}")
        outputs = [self._view(graph, t, a).copy() for t, a in zip(op.outputs, addresses[first_output:], strict=False)]
        return Result(outputs, left)

    def _view(self, graph: Graph, tensor: int, address: int) -> Array:
        t = graph.tensors[tensor]
        return np.ndarray(t.shape, t.dtype, self.arena.memory, address)

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


@pytest.fixture(scope="session")
def harness() -> Iterator[OperationHarness]:
    with Arena(ARENA_BYTES) as arena:
        yield OperationHarness(arena)


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch, the oracle."""
    return pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")


@pytest.fixture(scope="session")
def close() -> Callable[..., None]:
    """A function (ours, exact, tolerance=None): relative L2 distance, 1e-12 in float64 and 1e-5 in float32 by default."""

    def check(ours: Array, exact: Array, tolerance: float | None = None) -> None:
        assert ours.shape == exact.shape
        bound = tolerance if tolerance is not None else {"float32": 1e-5, "float64": 1e-12}[str(ours.dtype)]
        scale = np.linalg.norm(exact.astype(np.float64)) or 1.0
        distance = float(np.linalg.norm(ours.astype(np.float64) - exact.astype(np.float64)) / scale)
        assert distance <= bound, f"relative distance {distance:.3g} > {bound:.3g}"

    return check


@pytest.fixture(scope="session")
def slope() -> Callable[..., None]:
    """A function (f, inputs, gradients) that compares gradients of Σ f with central differences in float64.

    `f` maps float64 arrays to one array, `gradients` has an array or None for each input. Along a random direction v
    of each input, (f(x + hv) − f(x − hv)) / 2h must be ⟨gradient, v⟩ to 1e-6.
    """

    def check(f: Callable[..., Array], inputs: Sequence[Array], gradients: Sequence[Array | None]) -> None:
        rng = np.random.default_rng(17)
        assert any(g is not None for g in gradients)
        for position, gradient in enumerate(gradients):
            if gradient is None:
                continue
            direction = rng.standard_normal(inputs[position].shape)
            sums = []
            for step in (1e-5, -1e-5):
                moved = [x + step * direction if i == position else x for i, x in enumerate(inputs)]
                sums.append(float(np.sum(f(*moved))))
            expected = (sums[0] - sums[1]) / 2e-5
            found = float(np.sum(gradient * direction))
            size = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
            assert abs(found - expected) <= 1e-6 * max(size, 1e-3), f"input {position}: {found} against {expected}"

    return check


def everything() -> Sequential:
    """A network with every kind of layer, whose tensors are too large to hide an allocation."""
    return Sequential(
        Conv2d(16, 3, padding=1, bias=True),
        BatchNorm2d(),
        ReLU(),
        Branches(Conv2d(16, 1), Conv2d(16, 3, padding=2, dilation=2, groups=4, bias=False), Identity(), merge=Add()),
        Branches(Conv2d(12, (1, 3), padding=(0, 1)), Conv2d(8, 1, bias=False), merge=Concat()),
        LocalResponseNorm(5, alpha=0.3, beta=0.6),
        MaxPool2d(3, 2, 1, ceil_mode=True),
        Sigmoid(),
        Conv2d(40, 3, stride=2, padding=1),
        AvgPool2d(2, 1, 1, count_include_pad=False),
        Tanh(),
        Dropout(0.3),
        Branches(Flatten(), Sequential(GlobalAvgPool2d(), Flatten()), merge=Concat()),
        Linear(12),
    )


@dataclass(frozen=True)
class Catalogue:
    """Every operation that the graphs of `everything` hold, once per signature, with values for its inputs."""

    entries: list[tuple[Graph, Op, list[Array]]]


def _catalogue(harness: OperationHarness, dtype: str) -> Catalogue:
    rng = np.random.default_rng(5)
    forward = forward_graph(everything(), (3, 5, 33, 30), dtype)
    feeds: dict[str, Array] = {
        "images": rng.standard_normal((3, 5, 33, 30)).astype(dtype),
        LABELS: rng.integers(0, 12, 3),
        SCALARS: np.array([0.1, 2.0]),
        RANDOM_KEY: np.array([11, 3]),
    }
    found: dict[Any, tuple[Graph, Op, list[Array]]] = {}
    graphs = [training_graph(forward, SGD(momentum=0.9, weight_decay=1e-3)), training_graph(forward, SGD())]
    graphs += [evaluation_graph(forward), prediction_graph(forward)]
    for graph in graphs:
        values = harness.interpret(graph, feeds)
        for op in graph.ops:
            found.setdefault(graph.signature(op), (graph, op, [values[t] for t in op.inputs]))
    return Catalogue(list(found.values()))


@pytest.fixture(scope="session")
def catalogues(harness: OperationHarness) -> dict[str, Catalogue]:
    return {dtype: _catalogue(harness, dtype) for dtype in ("float32", "float64")}
