"""A graph of cuDNN while it is put together, in the terms of this backend.

Tensors are numbered: an operand of the operation by its position, what lies in the workspace or on the host behind
them. The numbers are what an execution gives addresses for. The package's objects come from outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .op_request import CHANNELS_LAST, Operand

TYPES: Mapping[str, str] = MappingProxyType(
    {"float32": "FLOAT", "bfloat16": "BFLOAT16", "bool": "BOOLEAN", "uint8": "BOOLEAN"}
)
"""cuDNN's names of element types; bytes occur as masks alone."""

SCRATCH, SCALAR = 100, 200
"""Where the numbers of tensors begin that are no operands; an operand's is its position + 1."""


def dimensions_and_strides(operand: Operand) -> tuple[list[int], list[int]]:
    """Dimensions and strides in elements, as cuDNN takes them.

    What is channels-last keeps the order of dimensions (N, C, H, W); a vector (C,) is (1, C, 1, 1); all else is rows
    (N, F, 1, 1).
    """
    shape = operand.spec.shape
    if operand.layout == CHANNELS_LAST:
        n, c, h, w = shape
        return [n, c, h, w], [c * h * w, 1, w * c, c]
    rows = 1 if len(shape) == 1 else shape[0]
    features = math.prod(shape) // rows
    return [rows, features, 1, 1], [features, 1, features, features]


class CudnnGraph:
    """A graph of cuDNN that is being put together, and what its execution needs.

    Attributes:
        pygraph: the graph object of the package `cudnn`.
        operands: number of a tensor → position of the operand whose address it gets.
        kept: the numbers among them of outputs that a repeated run must not write.
        scratch: number of a tensor → its bytes, for outputs that nobody reads.
        scalars: number of a tensor → its value.
    """

    def __init__(self, module: Any, graph: Any) -> None:
        self.pygraph = graph
        self.operands: dict[int, int] = {}
        self.kept: list[int] = []
        self.scratch: dict[int, int] = {}
        self.scalars: dict[int, float] = {}
        self._types = module.data_type

    def operand(self, position: int, operand: Operand) -> Any:
        """The input at a position."""
        self.operands[position + 1] = position
        return self._tensor(position + 1, operand)

    def scalar(self, value: float) -> Any:
        """A number in the host's memory."""
        number = SCALAR + len(self.scalars)
        self.scalars[number] = value
        return self.pygraph.tensor(
            dim=[1, 1, 1, 1],
            stride=[1, 1, 1, 1],
            data_type=self._types.FLOAT,
            is_pass_by_value=True,
            name=f"scalar{number}",
            uid=number,
        )

    def result(self, tensor: Any, position: int, operand: Operand, kept: bool = False) -> None:
        """Make of a tensor the output at a position; `kept` if a repeated run must not write it."""
        self.operands[position + 1] = position
        if kept:
            self.kept.append(position + 1)
        self._output(tensor, position + 1, operand)

    def discard(self, tensor: Any, operand: Operand) -> None:
        """Let a tensor that cuDNN insists on writing, of float32 and the shape of `operand`, be written to scratch."""
        number = SCRATCH + len(self.scratch)
        self.scratch[number] = operand.spec.nbytes
        self._output(tensor, number, operand)

    def round_to(self, tensor: Any, operand: Operand) -> Any:
        """Give an intermediate tensor the element type of an operand."""
        return tensor.set_data_type(self._type(operand))

    def convolution(self, x: Any, weight: Any, geometry: Mapping[str, list[int]]) -> Any:
        """The output of a convolution."""
        return self.pygraph.conv_fprop(image=x, weight=weight, **geometry)

    def convolution_data(self, dy: Any, weight: Any, geometry: Mapping[str, list[int]]) -> Any:
        """The gradient of a convolution's image."""
        return self.pygraph.conv_dgrad(loss=dy, filter=weight, **geometry)

    def convolution_weights(self, x: Any, dy: Any, geometry: Mapping[str, list[int]]) -> Any:
        """The gradient of a convolution's weight."""
        return self.pygraph.conv_wgrad(image=x, loss=dy, **geometry)

    def add(self, a: Any, b: Any) -> Any:
        """The sum a + b, with `b` spread over dimensions of size 1."""
        return self.pygraph.add(a=a, b=b)

    def multiply(self, a: Any, b: Any) -> Any:
        """The product a · b, element by element; of a mask, 0 and 1 are taken."""
        return self.pygraph.mul(a=a, b=b)

    def relu(self, x: Any) -> Any:
        """The tensor max(x, 0)."""
        return self.pygraph.relu(input=x)

    def mask_positive(self, x: Any) -> Any:
        """The mask x > 0."""
        return self.pygraph.cmp_gt(input=x, comparison=self.scalar(0.0))

    def batch_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, ...]:
        """The output, mean, 1 / √(var + eps), and running statistics, which are to be discarded.

        Not all versions of the package have a form without running statistics. What is given as such is of no account.
        """
        made: Sequence[Any] = self.pygraph.batchnorm(
            input=x,
            scale=weight,
            bias=bias,
            in_running_mean=weight,
            in_running_var=bias,
            epsilon=self.scalar(eps),
            momentum=self.scalar(0.0),
        )
        return tuple(made)

    def batch_norm_gradient(self, x: Any, dy: Any, weight: Any, mean: Any, inverse: Any) -> tuple[Any, ...]:
        """The gradients of image, scale and shift."""
        made: Sequence[Any] = self.pygraph.batchnorm_backward(
            grad=dy, input=x, scale=weight, mean=mean, inv_variance=inverse
        )
        return tuple(made)

    def _type(self, operand: Operand) -> Any:
        return getattr(self._types, TYPES[operand.spec.dtype])

    def _tensor(self, number: int, operand: Operand) -> Any:
        dim, stride = dimensions_and_strides(operand)
        return self.pygraph.tensor(
            dim=dim, stride=stride, data_type=self._type(operand), name=f"tensor{number}", uid=number
        )

    def _output(self, tensor: Any, number: int, operand: Operand) -> None:
        dim, stride = dimensions_and_strides(operand)
        tensor.set_output(True).set_uid(number).set_data_type(self._type(operand)).set_dim(dim).set_stride(stride)
