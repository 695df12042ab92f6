"""Layouts on a GPU: whatever has four axes lies channels-last, all else in C order.

So nothing is ever converted but where an image becomes a vector or the other way about: there the operations that
change a shape (`OpKind.reshapes`) move the bytes. In 16 bits weights are converted too (`narrowing.py`). An operation
that cuDNN computes, or that moves bytes, gets an attribute which says that its outputs must not lie over its inputs.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from ....layers.graph import Graph, Op, Role, Tensor
from ....layers.kinds import KINDS, NO_INPLACE, inplace_pairs
from ....memory.errors import ConfigError
from ..fusion import fuse
from .graphs import CUDNN_GRAPHS
from .kernel_program import plain_alike
from .kernel_programs import PROGRAMS
from .narrowing import narrow_images
from .op_request import CHANNELS_LAST, NARROW_CHANNELS_LAST, PLAIN


def lower(graph: Graph, math: str) -> Graph:
    """Fuse operations, give every tensor its layout, and mark the operations that must not run in place.

    Args:
        graph: of a step, in float32.
        math: "bf16" stores images in 16 bits.

    Raises:
        ConfigError: the graph computes in another type than float32.
    """
    for tensor in graph.with_role(Role.INPUT):
        if tensor.dtype != "float32":
            hint = "Give device='reference'."
            raise ConfigError("dtype", "float32 on the device 'cuda'", tensor.dtype, hint)
    fused = fuse(graph)
    fused = narrow_images(fused) if math == "bf16" else fused
    tensors = tuple(replace(t, layout=_layout(t)) for t in fused.tensors)
    eps = {op.outputs[1]: op.attrs["eps"] for op in fused.ops if op.kind in ("batch_norm_training", "batch_norm_relu")}
    return replace(fused, tensors=tensors, ops=tuple(_add_attributes(fused, op, eps) for op in fused.ops))


def _layout(tensor: Tensor) -> str:
    if len(tensor.shape) != 4:
        return tensor.layout
    return CHANNELS_LAST if tensor.layout == PLAIN else NARROW_CHANNELS_LAST


def _add_attributes(graph: Graph, op: Op, eps: dict[int, float]) -> Op:
    """Return the operation with what its kernels need to know beside its shapes."""
    attrs = dict(op.attrs)
    if op.kind == "batch_norm_update":
        attrs["eps"] = eps[op.inputs[0]]
    if inplace_pairs(op) and _must_not_overlap(graph, op):
        attrs[NO_INPLACE] = True
    return replace(op, attrs=MappingProxyType(attrs)) if attrs != dict(op.attrs) else op


def _must_not_overlap(graph: Graph, op: Op) -> bool:
    if KINDS[op.kind].reshapes:
        operands = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
        return operands[0].nbytes != operands[1].nbytes or not all(plain_alike(t.shape) for t in operands)
    return op.kind in CUDNN_GRAPHS and op.kind not in PROGRAMS
