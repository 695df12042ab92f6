"""Which tensor a gradient is the gradient of: it must end in that tensor's layout."""

from __future__ import annotations

from ....layers.graph import Graph, Phase, Role
from ....layers.merge import ADD


def find_primals(graph: Graph) -> dict[int, int]:
    """Find for each gradient that is read the tensor that it is the gradient of, by what its first reader does with it.

    A gradient of a shape that no output of the forward operation has belongs to none: a rule may make what it likes.
    """
    primals: dict[int, int] = {}
    for op in reversed(graph.ops):
        for t in op.inputs:
            if graph.tensors[t].role is not Role.GRADIENT:
                continue
            if op.phase is Phase.UPDATE:
                primals[t] = op.inputs[0]
            elif op.kind != ADD.name:
                shape = graph.tensors[t].shape
                outputs = (o for o in graph.ops[op.forward_op].outputs if graph.tensors[o].shape == shape)
                primal = next(outputs, None)
                if primal is not None:
                    primals[t] = primal
            elif op.outputs[0] in primals:
                primals[t] = primals[op.outputs[0]]
    return primals
