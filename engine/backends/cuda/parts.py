"""What an operation is made of on a GPU: graphs of cuDNN, products of matrices, and programs of the backend's kernels.

The parts of an operation run one after the other and use the same workspace. Plain data, made from shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .kernel_program import KernelProgram
from .kernel_programs import PROGRAMS, bias_add, bias_gradient
from .op_request import OpRequest


@dataclass(frozen=True, slots=True)
class Product:
    """C ← A · B in float32, all in Fortran's order of elements: A (m, k), B (k, n), C (m, n), each maybe transposed.

    Attributes:
        m, n, k: sizes.
        transposed: of A and of B, whether its memory holds the transposed matrix.
        operands: positions of A, B and C among inputs and outputs.
    """

    m: int
    n: int
    k: int
    transposed: tuple[bool, bool]
    operands: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """A program and the operands that it takes.

    Attributes:
        program: that runs.
        operands: for each of its own, the position among inputs and outputs.
    """

    program: KernelProgram
    operands: tuple[int, ...]


Part = OpRequest | Product | ProgramPart
"""A request stands for a graph of cuDNN of all its operands."""


def parts(request: OpRequest) -> tuple[Part, ...]:
    """What `request` is made of; raises DeviceError for kinds, types and layouts that nothing here computes."""
    if request.kind in PROGRAMS:
        program = PROGRAMS[request.kind](request)
        return (ProgramPart(program, tuple(range(len(request.inputs) + len(request.outputs)))),)
    if request.kind in PRODUCTS:
        return PRODUCTS[request.kind](request)
    return (request, *_of_bias(request)) if request.kind == "conv2d_backward_weights" else (request,)


def _linear(request: OpRequest) -> tuple[Part, ...]:
    """(x, weight[, bias]) → x · weightᵀ + bias."""
    (rows, features), made = _matrix(request, 0), request.inputs[1].spec.shape[0]
    output = len(request.inputs)
    product = Product(made, rows, features, (True, False), (1, 0, output))
    return (product, ProgramPart(bias_add(rows, made), (output, 2))) if output == 3 else (product,)


def _linear_data(request: OpRequest) -> tuple[Part, ...]:
    """(dy, weight) → dy · weight."""
    (rows, made), features = _matrix(request, 0), _matrix(request, 1)[1]
    return (Product(features, rows, made, (False, False), (1, 0, 2)),)


def _linear_weights(request: OpRequest) -> tuple[Part, ...]:
    """(x, dy) → (dyᵀ · x[, the sum of dy])."""
    (rows, features), made = _matrix(request, 0), request.inputs[1].spec.shape[1]
    return Product(features, made, rows, (False, True), (0, 1, 2)), *_of_bias(request)


def _of_bias(request: OpRequest) -> tuple[ProgramPart, ...]:
    """Of (x, dy) → (dweight[, dbias]), what makes the second output where there is one."""
    dy = request.inputs[1].spec
    return (ProgramPart(bias_gradient(dy.shape, dy.dtype), (1, 3)),) if len(request.outputs) == 2 else ()


def _matrix(request: OpRequest, position: int) -> tuple[int, int]:
    first, *rest = request.inputs[position].spec.shape
    return first, math.prod(rest)


PRODUCTS: Mapping[str, Callable[[OpRequest], tuple[Part, ...]]] = MappingProxyType(
    {"linear": _linear, "linear_backward_data": _linear_data, "linear_backward_weights": _linear_weights}
)
"""By kind; the gradient of a bias is a part of its own."""
