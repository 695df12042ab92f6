"""ReLU, sigmoid, tanh, their gradients, and sums: element by element, in whatever order the elements lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from .kernel_program import (
    FLOAT32,
    KernelProgram,
    choose_pack,
    element_type,
    elements,
    launch_flat,
    launch_items,
    pointers,
    require,
    same_order,
)
from .op_request import OpRequest


def _elementwise(function: str) -> Callable[[OpRequest], KernelProgram]:
    def program(request: OpRequest) -> KernelProgram:
        operands = (*request.inputs, *request.outputs)
        element = element_type(request, *operands)
        require(all(same_order(operands[0], o) for o in operands), request, "tensors of one shape and layout")
        return KernelProgram((launch_flat(function, element, elements(operands[0]), pointers(*range(len(operands)))),))

    return program


def bias_add(rows: int, features: int) -> KernelProgram:
    """Add a bias to each row in place, in float32: y ← y + bias.

    Operands: y (rows, features), bias (features,).
    """
    function, pack = choose_pack("bias_add", FLOAT32, features)
    count = rows * features
    return KernelProgram((launch_items(function, count // pack, pointers(0, 1), np.int64(count), np.int64(features)),))


ELEMENTWISE: Mapping[str, Callable[[OpRequest], KernelProgram]] = MappingProxyType(
    {
        "relu": _elementwise("relu"),
        "relu_backward": _elementwise("relu_backward"),
        "sigmoid": _elementwise("sigmoid"),
        "sigmoid_backward": _elementwise("sigmoid_backward"),
        "tanh": _elementwise("tanh_forward"),
        "tanh_backward": _elementwise("tanh_backward"),
        "add": _elementwise("add"),
        "add_relu": _elementwise("add_relu"),
    }
)
"""By kind; all may run in place."""
