"""A computation that runs beside transfers while these are timed.

It is the network's own operations in turn, on memory behind that of the transfers. What they compute is thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

from ...layers.graph import Graph, Role
from ...memory.devices.bandwidth import Computation
from ...memory.region import Region
from ...scheduler.plan.costs import CostTable
from ..backends.backend import Backend, Launch
from .profile import find_last_readers, place_operands


@dataclass(frozen=True, slots=True)
class BackgroundLoad:
    """Operations of a network that can be run over and over, whatever bits their operands hold.

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
        """Return what runs the next operation at each call and returns its seconds; None where no operation fits.

        The load holds one operation of each signature, with its first kernel. Operations that read or make anything
        but floating-point numbers, or read step scalars, are left out, since their operands may not be any bits.

        Args:
            arena: from which the operands take what they need, committed here, its contents overwritten.
            first: address from which on it may be used.
        """
        launches: dict[object, tuple[Launch, list[int], float]] = {}
        last_read = find_last_readers(self.graph)
        used = first
        for op in self.graph.ops:
            key = self.graph.signature(op)
            tensors = [self.graph.tensors[t] for t in (*op.inputs, *op.outputs)]
            free = all(t.dtype.startswith("float") and t.role is not Role.SCALARS for t in tensors)
            if key in launches or not free:
                continue
            kernel = self.costs.kernels[op.id][0]
            found, end = place_operands(self.graph, op, kernel.workspace_bytes, last_read)
            if first + end <= arena.nbytes:
                used = max(used, first + end)
                launch = self.backend.bind(self.graph, op, 0, False, arena)
                launches[key] = (launch, [first + address for address in found], kernel.seconds)
        if not launches:
            return None
        arena.commit(used)
        arena.poison(0, first, used - first)
        return _take_turns(list(launches.values()))


def _take_turns(launches: list[tuple[Launch, list[int], float]]) -> Computation:
    turns = cycle(launches)

    def run() -> float:
        launch, addresses, seconds = next(turns)
        launch(addresses)
        return seconds

    return run
