"""A computation to time transfers beside: the network's own operations in turn, on memory behind that of the transfers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

from ...layers.graph import Graph
from ...memory.devices.bandwidth import Computation
from ...memory.region import Region
from ...scheduler.plan.costs import CostTable
from ..backends.backend import Backend, Launch
from .profile import last_readers, places


@dataclass(frozen=True, slots=True)
class Load:
    """Operations that can be run over and over.

    Attributes:
        graph: lowered.
        costs: how much each operation is.
        backend: that runs them.
        environment: what the speed of its operations depends on.
    """

    graph: Graph
    costs: CostTable
    backend: Backend
    environment: str

    def start(self, arena: Region, first: int) -> Computation | None:
        """What runs the next operation at each call and returns its seconds; None where none fits.

        One operation of each signature, with its first kernel; those that read or make anything but floating-point
        numbers are left out, since any bits must do as their operands.

        Args:
            arena: from which the operands take what they need, committed here, its contents overwritten.
            first: address from which on it may be used.
        """
        launches: dict[object, tuple[Launch, list[int], float]] = {}
        last_read = last_readers(self.graph)
        used = first
        for op in self.graph.ops:
            key = self.graph.signature(op)
            tensors = [self.graph.tensors[t] for t in (*op.inputs, *op.outputs)]
            if key in launches or not all(t.dtype.startswith("float") for t in tensors):
                continue
            kernel = self.costs.kernels[op.id][0]
            found, end = places(self.graph, op, kernel.workspace_bytes, last_read)
            if first + end <= arena.nbytes:
                used = max(used, first + end)
                launch = self.backend.bind(self.graph, op, 0, False, arena)
                launches[key] = (launch, [first + address for address in found], kernel.seconds)
        if not launches:
            return None
        arena.commit(used)
        arena.poison(0, first, used - first)
        return _in_turn(list(launches.values()))


def _in_turn(launches: list[tuple[Launch, list[int], float]]) -> Computation:
    turns = cycle(launches)

    def run() -> float:
        launch, addresses, seconds = next(turns)
        launch(addresses)
        return seconds

    return run
