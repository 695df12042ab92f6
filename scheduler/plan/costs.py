"""What a planner knows of time: for each operation its kernels, their workspace and their seconds.

The table is filled by measuring (the engine's profiler) or by arithmetic (`analytic`); planners cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...layers.graph import Graph, Op, Signature
from ...layers.kinds import KINDS
from .link import Link

FLOPS_PER_SECOND = 5e10
BYTES_PER_SECOND = 1e10


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of one operation.

    Attributes:
        name: the backend's.
        workspace_bytes: scratch memory while it runs.
        seconds: of one run.
    """

    name: str
    workspace_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostTable:
    """What things take.

    Attributes:
        kernels: of every operation of a graph, by operation id; the first is the one of `kernels="fixed"`.
        link: to the memory outside; None where there is none.
    """

    kernels: tuple[tuple[KernelCost, ...], ...]
    link: Link | None = None

    def fastest_seconds(self, op: int) -> float:
        """Seconds of the fastest kernel, whatever its workspace."""
        return min(k.seconds for k in self.kernels[op])

    def smallest(self, op: int) -> int:
        """Index of the kernel with the least workspace; of equals the fastest."""
        options = self.kernels[op]
        return min(range(len(options)), key=lambda i: (options[i].workspace_bytes, options[i].seconds, i))


def analytic_seconds(
    graph: Graph, op: Op, flops_per_second: float = FLOPS_PER_SECOND, bytes_per_second: float = BYTES_PER_SECOND
) -> float:
    """The longer of arithmetic and memory traffic at the given rates (the roofline)."""
    inputs = [graph.tensors[t] for t in op.inputs]
    outputs = [graph.tensors[t] for t in op.outputs]
    flops = KINDS[op.kind].flops([t.spec for t in inputs], [t.spec for t in outputs], op.attrs)
    moved = sum(t.nbytes for t in inputs) + sum(t.nbytes for t in outputs)
    moved += sum(graph.tensors[t].nbytes for t in op.updates)
    return max(flops / flops_per_second, moved / bytes_per_second)


def tabulate(graph: Graph, kernels: Callable[[Op], Sequence[KernelCost]]) -> CostTable:
    """Fill a table, asking once for each signature."""
    known: dict[Signature, tuple[KernelCost, ...]] = {}
    rows = []
    for op in graph.ops:
        signature = graph.signature(op)
        if signature not in known:
            known[signature] = tuple(kernels(op))
        rows.append(known[signature])
    return CostTable(tuple(rows))
