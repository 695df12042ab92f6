"""Operations that numpy computes over whatever layout their operands share: those whose kind is declared flat.

The operands are then vectors of all that their layout holds, padding included: that is zero, and a flat kind makes
zeros of zeros (`OpKind.flat`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ....layers.graph import Graph, Op, Role, Tensor, TensorSpec, itemsize
from ....layers.kinds import KINDS
from ..reference.numpy_kernel import OpSpec

DTYPE = "float32"
"""The element type of what has a layout; all else lies plain."""


def take_part(op: Op, tensors: Sequence[Tensor]) -> list[bool]:
    """For each input and output, whether it has the shape and type of the first input, and so its layout."""
    first = tensors[op.inputs[0]].spec
    return [tensors[t].spec == first for t in (*op.inputs, *op.outputs)]


def is_flat(op: Op, tensors: Sequence[Tensor]) -> bool:
    """Whether an operation may run over a layout in one piece: by its kind, and by its operands.

    All outputs must have the shape and type of the first input, float32, and no other input its shape in another type,
    but for what the host gives to the step.
    """
    if not KINDS[op.kind].flat or tensors[op.inputs[0]].dtype != DTYPE:
        return False
    part = take_part(op, tensors)
    others = [tensors[t] for t, taking in zip(op.inputs, part, strict=False) if not taking]
    shape = tensors[op.inputs[0]].shape
    return all(part[len(op.inputs) :]) and all(t.shape != shape or t.role is Role.SCALARS for t in others)


def flat_spec(graph: Graph, op: Op) -> OpSpec:
    """An operation of a lowered graph as numpy meets it: what takes part as vectors, all else as it is."""
    tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
    vector = TensorSpec((tensors[0].nbytes // itemsize(DTYPE),), DTYPE)
    part = take_part(op, graph.tensors)
    specs = tuple(vector if taking else t.spec for t, taking in zip(tensors, part, strict=True))
    return OpSpec(specs[: len(op.inputs)], specs[len(op.inputs) :], op.attrs)
