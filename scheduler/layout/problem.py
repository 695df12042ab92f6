"""What there is to plan: the whole input of every planner."""

from __future__ import annotations

from dataclasses import dataclass

from ...layers.graph import Graph
from ..plan.costs import CostTable
from ..plan.state_layout import StateLayout
from .kernels import Kernels


@dataclass(frozen=True, slots=True)
class Problem:
    """All that a planner may look at.

    Attributes:
        graph: lowered, with blocks.
        costs: kernels and seconds of every operation.
        kernels: whether kernels follow the free bytes.
        state: where parameters, statistics and optimizer state lie.
        fixed_state: whether other programs rely on where the state lies; else a strategy may leave part of it outside
            the arena.
        most_outside_bytes: the most bytes that may be outside the arena at a time; None for no limit.
    """

    graph: Graph
    costs: CostTable
    kernels: Kernels
    state: StateLayout
    fixed_state: bool = False
    most_outside_bytes: int | None = None
