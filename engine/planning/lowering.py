"""From a graph to one in which every byte is known: the backend's fusions and layouts, then the chain's blocks."""

from __future__ import annotations

from ...layers.graph import Graph
from ...scheduler.blocks.cut import assign_blocks
from ..backends.backend import Backend


def lower(graph: Graph, backend: Backend) -> Graph:
    """Fix operations, layouts and blocks; planners and executors see only what comes out of here."""
    return assign_blocks(backend.lower(graph))
