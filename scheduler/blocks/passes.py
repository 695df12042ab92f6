"""Peaks and seconds of pieces of a step, by the lifetime rules of the final plan.

The lifetimes of a piece are found as if nothing ran before or after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ...layers.graph import Graph, Role, Tensor
from ...layers.kinds import KINDS
from ..layout.kernels import KernelChoice
from ..layout.lifetimes import aligned_size, find_lifetimes
from ..plan.costs import CostTable
from ..plan.steps import NO_TENSOR


def find_kept_statistics(graph: Graph) -> frozenset[int]:
    """Find the tensors that are kept for the backward pass in every plan, as no plan may compute them twice."""
    return frozenset(t for op in graph.ops for i in KINDS[op.kind].kept for t in op.outputs[i : i + 1])


class PassCosts:
    """Peaks and seconds of lists of operations, as the chain model counts them.

    State, labels, and the statistics that every plan keeps are not counted, as they live beside the chain.

    Args:
        graph: lowered.
        costs: kernels and seconds.
        choose: which kernel each operation runs with.

    Attributes:
        graph: as given.
        kept: the tensors that no plan may compute twice.
        choose: as given.
    """

    def __init__(self, graph: Graph, costs: CostTable, choose: KernelChoice) -> None:
        self.graph = graph
        self.kept = find_kept_statistics(graph)
        self.choose = choose
        self._costs = costs

    def size(self, tensor: Tensor) -> int:
        """Bytes of a tensor as the chain model counts them; 0 for what lives beside the chain."""
        if tensor.role in (Role.ACTIVATION, Role.GRADIENT, Role.INPUT) and tensor.id not in self.kept:
            return aligned_size(tensor)
        return 0

    def nbytes(self, tensors: Iterable[int]) -> int:
        """Bytes of several tensors together; `NO_TENSOR` counts as 0."""
        return sum(self.size(self.graph.tensors[t]) for t in tensors if t != NO_TENSOR)

    def seconds(self, ops: Iterable[int]) -> float:
        """Seconds of operations with the kernels that `choose` names."""
        return sum(self._costs.kernels[op][self.choose(op)[0]].seconds for op in ops)

    def live_bytes(self, ops: Sequence[int], present: Iterable[int], final: Iterable[int]) -> npt.NDArray[np.int64]:
        """Count the bytes alive at each operation of a list.

        Args:
            ops: in the order in which they run.
            present: tensors that are there before; `NO_TENSOR` is left out.
            final: tensors that must be there afterwards; `NO_TENSOR` is left out.
        """
        there = [t for t in present if t != NO_TENSOR]
        after = [t for t in final if t != NO_TENSOR]
        return find_lifetimes(self.graph, ops, self.choose, size=self.size, present=there, final=after).live_bytes()

    def peak(self, ops: Sequence[int], present: Iterable[int], final: Iterable[int]) -> int:
        """The most of `live_bytes`; the bytes of `present` where no operation runs."""
        return int(self.live_bytes(ops, present, final).max()) if ops else self.nbytes(present)
