"""From a graph to one in which every byte is known: the backend's fusions and layouts, then the chain's blocks.

Before anything is planned or any memory is taken, it is settled here that every operation has a declaration and a
kernel: what is missing is named with its layer.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...layers.graph import Graph, Tensor
from ...layers.kinds import kind_of
from ...memory.errors import ConfigError
from ...scheduler.blocks.cut import assign_blocks
from ..backends.backend import Backend
from ..backends.cuda.backend import CudaBackend
from ..backends.onednn import OneDnnBackend
from ..backends.reference import ReferenceBackend
from .shared_state import require_same_state

COMPUTING: tuple[type[Backend], ...] = (CudaBackend, OneDnnBackend, ReferenceBackend)
"""The backends that are named to a user whose own lacks a kernel."""


def lower(graph: Graph, backend: Backend, state: Mapping[str, Tensor] | None = None) -> Graph:
    """Fix operations, layouts and blocks; planners and executors see only what comes out of here.

    Args:
        graph: of one program.
        backend: that will run it.
        state: of the training step that it shares its state with, lowered, by name; None where it shares none.

    Raises:
        GraphError: an operation is of a kind that is not registered.
        ConfigError: the backend has no kernel for an operation, or does not compute in the type of the graph.
        PlanError: the backend reads or writes the state otherwise than `state` says.
    """
    for op in graph.ops:
        kind_of(op)
    if state is None:
        lowered = backend.lower(graph)
    else:
        lowered = backend.lower(graph, state)
        require_same_state(f"lowering {graph.name!r}", lowered, state)
    require_kernels(lowered, backend)
    return assign_blocks(lowered)


def require_kernels(graph: Graph, backend: Backend) -> None:
    """Check that a backend computes every operation of a graph that it has lowered.

    Raises:
        ConfigError: it does not; names the layer, the kind of operation, and the backends that compute it.
    """
    for op in graph.ops:
        if not backend.computes(op.kind):
            able = [known.name for known in COMPUTING if known.computes(op.kind)]
            raise ConfigError(
                f"{op.name} ({op.kind})",
                f"an operation that the device {backend.name!r} has a kernel for",
                f"none for {op.kind!r}",
                f"Give a device that has one: {', '.join(able)}." if able else "No device has one.",
            )
