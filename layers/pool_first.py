"""Putting ReLU and max pooling into the cheaper order, with the pooling first.

The largest of rectified values is the largest value rectified, and its gradient reaches the same element: where that is
not positive no gradient passes in either order. With the pooling first, ReLU works on the smaller tensor, and its
backward pass reads the pooled output, which stays anyway, instead of the large one, which then need not be kept at all.
Results are the same to the bit, but for the sign of a zero.

The forward graph alone decides: a ReLU moves where nothing but a max pooling reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .activation import RELU
from .graph import Graph, Op
from .pooling import MAX_POOL


def pool_first(forward: Graph) -> Graph:
    """Move every ReLU that only a max pooling reads behind that pooling, and further while a next one reads it."""
    only = _find_only_readers(forward)
    moving = _find_moving(forward, only)
    tensors, ops = list(forward.tensors), list[Op]()
    waiting: dict[int, list[Op]] = {}  # for a tensor the ReLUs that are still to be applied to it
    names: dict[int, int] = {}  # for a tensor the one that is read instead

    for op in forward.ops:
        read = op.inputs[0] if op.inputs else -1
        if op.id in moving:
            waiting[op.outputs[0]] = relus = waiting.pop(read, [])
            relus.append(op)
            names[op.outputs[0]] = names.get(read, read)
            continue
        ops.append(replace(op, inputs=_rename(op.inputs, names)))
        if op.kind == MAX_POOL.name and read in waiting:
            pooled, relus = op.outputs[0], waiting.pop(read)
            reader = only.get(pooled)
            if reader is not None and (reader.kind == MAX_POOL.name or reader.id in moving):
                waiting[pooled] = relus
                continue
            for relu in relus:
                ops.append(replace(relu, inputs=(names.get(pooled, pooled),)))
                names[pooled] = made = relu.outputs[0]
                tensors[made] = replace(tensors[made], shape=tensors[pooled].shape, nbytes=tensors[pooled].nbytes)
    ops = [replace(op, id=number, forward_op=number) for number, op in enumerate(ops)]
    return replace(forward, tensors=tuple(tensors), ops=tuple(ops), outputs=_rename(forward.outputs, names))


def _find_only_readers(graph: Graph) -> dict[int, Op]:
    """Find for each tensor that one operation reads, and nobody else, that operation."""
    outputs, readers = set(graph.outputs), enumerate(graph.readers())
    return {tensor: graph.ops[ids[0]] for tensor, ids in readers if len(ids) == 1 and tensor not in outputs}


def _find_moving(graph: Graph, only: Mapping[int, Op]) -> set[int]:
    """Find the ReLUs that only a max pooling reads, or only another one that moves."""
    moving: set[int] = set()
    for op in reversed(graph.ops):
        reader = only.get(op.outputs[0]) if op.kind == RELU.name else None
        if reader is not None and (reader.kind == MAX_POOL.name or reader.id in moving):
            moving.add(op.id)
    return moving


def _rename(tensors: tuple[int, ...], names: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(names.get(t, t) for t in tensors)
