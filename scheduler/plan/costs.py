"""What a planner knows of time: for each operation its kernels, their workspace and their seconds.

The table is filled by measuring (the engine's profiler) or by arithmetic (`analytic_seconds`); planners cannot tell
which. Not checked: that the seconds are those of any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...layers.graph import Graph, Op, Signature
from ...layers.kinds import KINDS
from .link import Link

FLOPS_PER_SECOND = 5e10
"""The rate of arithmetic that `analytic_seconds` assumes."""
BYTES_PER_SECOND = 1e10
"""The rate of memory traffic that `analytic_seconds` assumes."""


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of one operation.

    Attributes:
        name: the backend's name for it.
        workspace_bytes: scratch memory that it needs while it runs.
        seconds: time of one run.
    """

    name: str
    workspace_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostTable:
    """The kernels of every operation of a graph with their costs, and the link to the memory outside.

    Attributes:
        kernels: the kernels of each operation, by operation id; the first is the one that `kernels="fixed"` takes.
        link: the link over which tensors may leave the arena; None where there is none.
    """

    kernels: tuple[tuple[KernelCost, ...], ...]
    link: Link | None = None

    def fastest_seconds(self, op: int) -> float:
        """Seconds of the fastest kernel of an operation, whatever its workspace."""
        return min(k.seconds for k in self.kernels[op])

    def find_smallest(self, op: int) -> int:
        """Index of the kernel with the least workspace; among equals, of the fastest."""
        options = self.kernels[op]
        return min(range(len(options)), key=lambda i: (options[i].workspace_bytes, options[i].seconds, i))


def analytic_seconds(graph: Graph, op: Op) -> float:
    """The seconds of an operation by the roofline: its arithmetic or its memory traffic, whichever takes longer."""
    inputs = [graph.tensors[t] for t in op.inputs]
    outputs = [graph.tensors[t] for t in op.outputs]
    flops = KINDS[op.kind].flops([t.spec for t in inputs], [t.spec for t in outputs], op.attrs)
    moved = sum(t.nbytes for t in inputs) + sum(t.nbytes for t in outputs)
    moved += sum(graph.tensors[t].nbytes for t in op.updates)
    return max(flops / FLOPS_PER_SECOND, moved / BYTES_PER_SECOND)


def tabulate(graph: Graph, kernels: Callable[[Op], Sequence[KernelCost]]) -> CostTable:
    """Fill a cost table; `kernels` is asked once for each signature."""
    known: dict[Signature, tuple[KernelCost, ...]] = {}
    rows = []
    for op in graph.ops:
        signature = graph.signature(op)
        if signature not in known:
            known[signature] = tuple(kernels(op))
        rows.append(known[signature])
    return CostTable(tuple(rows))
