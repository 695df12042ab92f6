"""Element-wise activations. Their gradients work from the output alone, so they may run in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .builder import GraphBuilder, Layer
from .graph import Op
from .operations import BackwardBuilder, OpKind, same_as_first


def _backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    return builder.emit(f"{op.kind}_backward", (op.outputs[0], gradients[0]), op.inputs, op.attrs)


# ReLU alone is flat, which asks that zeros stay zeros: sigmoid(0) is 1/2. tanh(0) is 0, so that tanh could be declared
# flat too; it is not, as oneDNN would then run it in blocked layouts, and plans that were saved would no longer fit.
RELU = OpKind("relu", same_as_first, _backward, inplace=((0, 0),), flat=True)
SIGMOID = OpKind("sigmoid", same_as_first, _backward, inplace=((0, 0),))
TANH = OpKind("tanh", same_as_first, _backward, inplace=((0, 0),))
KINDS = (
    RELU,
    SIGMOID,
    TANH,
    OpKind("relu_backward", inplace=((0, 1), (0, 0)), flat=True),
    OpKind("sigmoid_backward", inplace=((0, 1), (0, 0))),
    OpKind("tanh_backward", inplace=((0, 1), (0, 0))),
)


@dataclass(frozen=True)
class ReLU(Layer):
    """y = max(x, 0), of any shape."""

    pytorch: ClassVar[tuple[str, ...]] = ("inplace",)

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the activation."""
        return builder.apply(RELU, (x,))


@dataclass(frozen=True)
class Sigmoid(Layer):
    """y = 1 / (1 + exp(−x)), of any shape."""

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the activation."""
        return builder.apply(SIGMOID, (x,))


@dataclass(frozen=True)
class Tanh(Layer):
    """y = tanh(x), of any shape."""

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the activation."""
        return builder.apply(TANH, (x,))
