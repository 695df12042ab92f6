"""From a training graph to the chain model of the optimal-checkpointing DP, and from its steps back to an order.

The numbers of a block come from the same lifetime rules as the final plan: each of its passes is drafted on its own,
and what its peak has above the model's own terms is the pass's signed transient bytes. State, labels, scalars, loss,
and the batch statistics that are kept for the backward pass live outside the model, in `background_bytes`.

Source: Herrmann, Beaumont et al., "Optimal checkpointing for heterogeneous chains" (arXiv 1911.13214), section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..layers.graph import FED, STATE, Graph, Role, Tensor
from ..layers.kinds import KINDS
from ..memory.errors import unreachable
from .blocks import BlockOps
from .chain_dp import Backward, Block, Chain, ForwardCheckpoint, ForwardDiscard, ForwardSave, Option, Step
from .costs import CostTable
from .draft import aligned_size, draft
from .kernels import Choice
from .plan import NO_TENSOR


def kept_statistics(graph: Graph) -> frozenset[int]:
    """Tensors that no plan may compute twice."""
    return frozenset(t for op in graph.ops for i in KINDS[op.kind].kept for t in op.outputs[i : i + 1])


def background_bytes(graph: Graph) -> int:
    """Bytes that live beside the chain: all but images, activations and gradients."""
    kept = kept_statistics(graph)
    return sum(
        aligned_size(t)
        for t in graph.tensors
        if t.role in STATE or t.role is Role.METRIC or (t.role in FED and t.role is not Role.INPUT) or t.id in kept
    )


class _Passes:
    """Peaks and seconds of a block's passes."""

    def __init__(self, graph: Graph, costs: CostTable, choose: Choice) -> None:
        self.graph = graph
        self._costs = costs
        self._choose = choose
        self._kept = kept_statistics(graph)

    def size(self, tensor: Tensor) -> int:
        """Bytes of a tensor in the model; 0 for what lives beside it."""
        if tensor.role in (Role.ACTIVATION, Role.GRADIENT, Role.INPUT) and tensor.id not in self._kept:
            return aligned_size(tensor)
        return 0

    def nbytes(self, tensors: Iterable[int]) -> int:
        return sum(self.size(self.graph.tensors[t]) for t in tensors if t != NO_TENSOR)

    def seconds(self, ops: Sequence[int]) -> float:
        return sum(self._costs.kernels[op][self._choose(op)[0]].seconds for op in ops)

    def peak(self, ops: Sequence[int], resident: Iterable[int], final: Iterable[int]) -> int:
        there = [t for t in resident if t != NO_TENSOR]
        after = [t for t in final if t != NO_TENSOR]
        if not ops:
            return self.nbytes(there)
        return int(draft(self.graph, ops, self._choose, size=self.size, resident=there, final=after).live_bytes().max())


def chain_model(graph: Graph, blocks: Sequence[BlockOps], costs: CostTable, choose: Choice) -> Chain:
    """The numbers of every block, with one option: save what the backward pass reads."""
    passes = _Passes(graph, costs, choose)
    rows = []
    for index, block in enumerate(blocks):
        loss = index == len(blocks) - 1
        entering, saved = block.input, sorted(block.saved)
        output = NO_TENSOR if loss else blocks[index + 1].input
        incoming = NO_TENSOR if loss else blocks[index + 1].gradient
        a, a_next = passes.nbytes([entering]), passes.nbytes([output])
        d, d_next = passes.nbytes([block.gradient]), passes.nbytes([incoming])
        held = passes.nbytes(saved)
        repeatable = [op for op in block.forward if not graph.ops[op].updates]
        plain = passes.peak(repeatable, [entering], [entering, output]) - a - a_next
        save = passes.peak(block.forward, [entering], [entering, *saved]) - a - held
        back = passes.peak(block.backward, [entering, *saved, incoming], [entering, block.gradient])
        forward_seconds = passes.seconds(block.forward)
        option = Option(
            saved_bytes=held,
            forward_seconds=forward_seconds,
            backward_seconds=passes.seconds(block.backward),
            forward_transient_bytes=save,
            backward_transient_bytes=back - a - held - d - d_next,
        )
        rows.append(Block(a, d, forward_seconds, plain, (option,)))
    return Chain(tuple(rows))


def expand(graph: Graph, blocks: Sequence[BlockOps], steps: Iterable[Step]) -> list[int]:
    """The order of operations that steps of the chain stand for; running statistics are updated on the first pass."""
    order: list[int] = []
    seen: set[int] = set()
    for step in steps:
        match step:
            case ForwardDiscard() | ForwardCheckpoint() | ForwardSave():
                forward = blocks[step.block].forward
                order += [op for op in forward if step.block not in seen or not graph.ops[op].updates]
                seen.add(step.block)
            case Backward():
                order += blocks[step.block].backward
            case _:
                unreachable(step)
    return order
