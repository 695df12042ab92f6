"""ReLU and max pooling in the cheaper order: pool first.

The largest of rectified values is the largest value rectified, and its gradient reaches the same element: where that is
not positive no gradient passes in either order. With the pooling first, ReLU works on the smaller tensor, and its
backward pass reads the pooled output, which stays anyway, instead of the large one, which then need not be kept at all.
Results are the same to the bit, but for the sign of a zero.

Decided from the forward graph alone: a ReLU moves where nothing but a max pooling reads it.
"""

from __future__ import annotations

from dataclasses import replace

from .activation import RELU
from .graph import Graph, Op
from .pooling import MAX_POOL


def pool_first(forward: Graph) -> Graph:
    """Move every ReLU that only a max pooling reads behind that pooling."""
    graph = forward
    while (found := _find(graph)) is not None:
        graph = _swap(graph, *found)
    return graph


def _find(graph: Graph) -> tuple[Op, Op] | None:
    readers = graph.readers()
    for op in graph.ops:
        if op.kind == RELU.name and op.outputs[0] not in graph.outputs and len(readers[op.outputs[0]]) == 1:
            reader = graph.ops[readers[op.outputs[0]][0]]
            if reader.kind == MAX_POOL.name:
                return op, reader
    return None


def _swap(graph: Graph, relu: Op, pool: Op) -> Graph:
    x, rectified, pooled = relu.inputs[0], relu.outputs[0], pool.outputs[0]
    tensors = list(graph.tensors)
    tensors[rectified] = replace(tensors[rectified], shape=tensors[pooled].shape, nbytes=tensors[pooled].nbytes)
    ops: list[Op] = []
    for op in graph.ops:
        if op.id == pool.id:
            ops += [replace(pool, inputs=(x,)), replace(relu, inputs=(pooled,))]
        elif op.id != relu.id:
            reads = pooled in op.inputs
            ops.append(replace(op, inputs=_rename(op.inputs, pooled, rectified)) if reads else op)
    ops = [op if op.id == number else replace(op, id=number, forward_op=number) for number, op in enumerate(ops)]
    outputs = _rename(graph.outputs, pooled, rectified)
    return replace(graph, tensors=tuple(tensors), ops=tuple(ops), outputs=outputs)


def _rename(tensors: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    return tuple(new if t == old else t for t in tensors)
