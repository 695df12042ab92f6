"""Images in 16 bits: a rewrite of a graph for `math="bf16"`.

Whatever has four axes and is no weight, state of the optimizer or gradient of a weight is stored as bfloat16, half of
its bytes. The weights themselves, their gradients as the update reads them, statistics and everything else stay
float32: a convolution reads a narrow copy of its weight and bias that is made right before it, and its weight's
gradient is widened right after. So no copy outlives the operation that asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from ....layers.graph import Graph, Op, Phase, Role, Tensor
from ....layers.shape import CONVERT
from .op_request import BFLOAT16

READS_WEIGHTS = MappingProxyType({"conv2d": (1, 2), "conv2d_backward_data": (1,)})
"""Positions of the inputs that a kind reads in 16 bits, though they are held in 32."""
MAKES_WEIGHTS = MappingProxyType({"conv2d_backward_weights": 0})
"""Position of the output that a kind makes in 16 bits, though it is read in 32."""
NARROW = frozenset({Role.INPUT, Role.ACTIVATION, Role.GRADIENT})


def narrow_images(graph: Graph) -> Graph:
    """Return the graph with its images in bfloat16; lowering completes the layouts, which `op_request.py` names."""
    return _Narrowing(graph).run()


class _Narrowing:
    """A graph while its images are brought into 16 bits."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        updated = {t for op in graph.ops if op.phase is Phase.UPDATE for t in op.inputs}
        self._tensors = [_narrow(t) if len(t.shape) == 4 and t.id not in updated else t for t in graph.tensors]
        self._ops: list[Op] = []
        self._place: dict[int, int] = {}

    def run(self) -> Graph:
        for op in self._graph.ops:
            inputs, outputs = list(op.inputs), list(op.outputs)
            for position in READS_WEIGHTS.get(op.kind, ()):
                if position < len(inputs):
                    inputs[position] = self._copy(op.inputs[position])
                    self._convert(op, op.inputs[position], inputs[position])
            made = MAKES_WEIGHTS.get(op.kind)
            if made is not None:
                outputs[made] = self._copy(op.outputs[made])
            self._append(op, inputs, outputs)
            if made is not None:
                self._convert(op, outputs[made], op.outputs[made])
        return replace(self._graph, tensors=tuple(self._tensors), ops=tuple(self._ops))

    def _copy(self, tensor: int) -> int:
        """Add a tensor in 16 bits for the values of another."""
        old, number = self._tensors[tensor], len(self._tensors)
        role = Role.GRADIENT if old.role is Role.GRADIENT else Role.ACTIVATION
        copy = replace(old, id=number, name=f"{old.name}.narrow{number}", role=role, initializer=None, part=None)
        self._tensors.append(_narrow(copy))
        return number

    def _convert(self, op: Op, source: int, target: int) -> None:
        number, forward = len(self._ops), op.phase is Phase.FORWARD
        forward_op = number if forward else self._place[op.forward_op]
        self._ops.append(Op(number, CONVERT.name, op.name, (source,), (target,), phase=op.phase, forward_op=forward_op))

    def _append(self, op: Op, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        number = self._place[op.id] = len(self._ops)
        forward_op = number if op.forward_op == op.id else self._place[op.forward_op]
        self._ops.append(replace(op, id=number, inputs=tuple(inputs), outputs=tuple(outputs), forward_op=forward_op))


def _narrow(tensor: Tensor) -> Tensor:
    """Return the tensor in 16 bits, where it is of float32 and no state."""
    if tensor.role not in NARROW or tensor.dtype != "float32":
        return tensor
    return replace(tensor, layout=BFLOAT16, nbytes=2 * tensor.elements)
