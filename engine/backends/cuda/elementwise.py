"""ReLU, sigmoid, tanh, their gradients, and sums: element by element, in whatever order the elements lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from .program import FLOAT32, Program, each, element_type, elements, flat, packed, pointers, require, same_order
from .request import Request


def _elementwise(function: str) -> Callable[[Request], Program]:
    def program(request: Request) -> Program:
        operands = (*request.inputs, *request.outputs)
        element = element_type(request, *operands)
        require(all(same_order(operands[0], o) for o in operands), request, "tensors of one shape and layout")
        return Program((flat(function, element, elements(operands[0]), pointers(*range(len(operands)))),))

    return program


def bias_add(rows: int, features: int) -> Program:
    """Add a bias to each row in place, in float32: y ← y + bias.

    Operands: y (rows, features), bias (features,).
    """
    function, pack = packed("bias_add", FLOAT32, features)
    count = rows * features
    return Program((each(function, count // pack, pointers(0, 1), np.int64(count), np.int64(features)),))


ELEMENTWISE: Mapping[str, Callable[[Request], Program]] = MappingProxyType(
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
