"""What the tests of all backends share: a harness of the numpy backend, oracles, and values for every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.layers import (
    SGD,
    CrossEntropy,
    Graph,
    Loss,
    Op,
    Optimizer,
    Target,
    evaluation_graph,
    forward_graph,
    prediction_graph,
    training_graph,
)
from bathyal.layers.losses.loss import find_target
from bathyal.layers.modes import IMAGES, LABELS, RANDOM_KEY, SCALARS
from bathyal.layers.step_scalars import compute_scalars
from bathyal.memory.arena import Arena
from tests.support.every_layer import everything
from tests.support.operation_harness import OperationHarness, relative_distance

Array = npt.NDArray[Any]

ARENA_BYTES = 32 * 2**20


@pytest.fixture(scope="session")
def harness() -> Iterator[OperationHarness]:
    with Arena(ARENA_BYTES) as arena:
        yield OperationHarness(ReferenceBackend(), arena)


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch, the oracle."""
    return pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")


@pytest.fixture(scope="session")
def close() -> Callable[..., None]:
    """A function (ours, exact, tolerance=None): relative L2 distance, by default 1e-12 in float64, 1e-5 in float32."""

    def check(ours: Array, exact: Array, tolerance: float | None = None) -> None:
        assert ours.shape == exact.shape
        bound = tolerance if tolerance is not None else {"float32": 1e-5, "float64": 1e-12}[str(ours.dtype)]
        distance = relative_distance(ours, exact)
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


TRAINED_BY: tuple[tuple[Optimizer, Loss], ...] = (
    (SGD(momentum=0.9, weight_decay=1e-3), CrossEntropy()),
    (SGD(), CrossEntropy()),
)
"""Optimizer and loss of each training graph of the catalogue; every one that the package brings must be among them."""


@dataclass(frozen=True)
class Catalogue:
    """Every operation that the graphs of `everything` hold, once per signature, with values for its inputs."""

    entries: list[tuple[Graph, Op, list[Array]]]


def _draw_target(target: Target) -> Array:
    rng = np.random.default_rng(6)
    if np.dtype(target.dtype).kind == "f":
        return rng.standard_normal(target.shape).astype(target.dtype)
    return rng.integers(0, target.classes or 100, target.shape, target.dtype)


def _catalogue(harness: OperationHarness, dtype: str) -> Catalogue:
    images = np.random.default_rng(5).standard_normal((3, 5, 33, 30)).astype(dtype)
    forward = forward_graph(everything(), images.shape, dtype)
    output = forward.tensors[forward.outputs[0]].spec
    found: dict[Any, tuple[Graph, Op, list[Array]]] = {}
    for optimizer, loss in TRAINED_BY:
        feeds: dict[str, Array] = {
            IMAGES: images,
            LABELS: _draw_target(find_target(loss, output)),
            SCALARS: compute_scalars(optimizer, 1, 0.1, 2.0),
            RANDOM_KEY: np.array([11, 3]),
        }
        graphs = (training_graph(forward, optimizer, loss), evaluation_graph(forward, loss), prediction_graph(forward))
        for graph in graphs:
            values = harness.interpret(graph, feeds)
            for op in graph.ops:
                found.setdefault(graph.signature(op), (graph, op, [values[t] for t in op.inputs]))
    return Catalogue(list(found.values()))


@pytest.fixture(scope="session")
def catalogues(harness: OperationHarness) -> dict[str, Catalogue]:
    return {dtype: _catalogue(harness, dtype) for dtype in ("float32", "float64")}
