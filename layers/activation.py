"""Element-wise activations. Their gradients work from the output alone, so they may run in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .builder import GraphBuilder, Layer
from .graph import Op
from .operations import BackwardBuilder, OpKind, same_as_first


def _backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    return builder.emit(f"{op.kind}_backward", (op.outputs[0], gradients[0]), op.inputs, op.attrs)


RELU, SIGMOID, TANH = (
    OpKind(name, same_as_first, _backward, inplace=((0, 0),), flat=name == "relu")
    for name in ("relu", "sigmoid", "tanh")
)
KINDS = (
    RELU,
    SIGMOID,
    TANH,
    *(OpKind(f"{kind.name}_backward", inplace=((0, 1), (0, 0)), flat=kind.flat) for kind in (RELU, SIGMOID, TANH)),
)


@dataclass(frozen=True)
class ReLU(Layer):
    """y = max(x, 0), of any shape."""

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
