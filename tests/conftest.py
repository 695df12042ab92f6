"""What all tests share: how many threads compute, the oracle for whole networks, and first values of parameters."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pytest
from threadpoolctl import threadpool_limits

from bathyal.layers.graph import Graph
from bathyal.layers.initializers import initialize
from bathyal.memory.process.cores import count_usable_cores

if TYPE_CHECKING:
    from tests.support.torch_network import TorchNetwork

Array = npt.NDArray[Any]

THREADS = max(1, count_usable_cores() // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
"""What each process that runs tests computes with: its share of the cores. Where all had as many threads as there are
cores, threads would wait for others that do not run, and burn twice the time. `Trainer` chooses its own number."""

threadpool_limits(THREADS, user_api="blas")


@pytest.fixture
def python_interrupts() -> Iterator[None]:
    """Python's own handler of Ctrl-C: a shell that starts the tests in the background has it ignored."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


@pytest.fixture(scope="session")
def torch_network() -> type[TorchNetwork]:
    """The oracle's class: `torch_network(graph, values, training=True, masks=None, regions=None)`."""
    torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
    torch.set_num_threads(THREADS)
    from tests.support.torch_network import TorchNetwork

    return TorchNetwork


@pytest.fixture(scope="session")
def initial_values() -> Callable[..., dict[str, Array]]:
    """A function (graph, seed=0) → first value of every parameter, buffer, by name."""

    def values(graph: Graph, seed: int = 0) -> dict[str, Array]:
        return {
            t.name: initialize(t.initializer, t.shape, t.dtype, seed=seed, name=t.name)
            for t in graph.tensors
            if t.initializer is not None
        }

    return values
