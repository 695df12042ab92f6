"""Dropout. The mask is never stored: the backward pass, and any recomputation, draws the same numbers again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..memory.errors import ConfigError
from .builder import GraphBuilder, Layer
from .graph import Op
from .operations import BackwardBuilder, ModeBuilder, OpKind, same_as_first


def _training(builder: ModeBuilder, op: Op, inputs: tuple[int, ...]) -> int:
    reads = (inputs[0], builder.key)
    return builder.emit("dropout_training", op, reads, {"": builder.spec(inputs[0])}, op.attrs)[0]


def _evaluation(builder: ModeBuilder, op: Op, inputs: tuple[int, ...]) -> int:
    return inputs[0]


def _backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    x, key = op.inputs
    return (*builder.emit("dropout_backward", (gradients[0], key), (x,), op.attrs), None)


DROPOUT = OpKind("dropout", same_as_first, training=_training, evaluation=_evaluation)
KINDS = (
    DROPOUT,
    OpKind("dropout_training", backward=_backward, inplace=((0, 0),), random=True),
    OpKind("dropout_backward", inplace=((0, 0),), random=True),
)


@dataclass(frozen=True)
class Dropout(Layer):
    """Zero each element with probability p and scale the others by 1 / (1 − p); nothing in evaluation.

    The mask is a function of (seed, step, layer) alone, the same in float32 and float64 and under every plan.
    Source: Srivastava et al., 2014.
    """

    p: float = 0.5

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the operation; raises ConfigError when p is not in [0, 1)."""
        if not 0 <= self.p < 1:
            raise ConfigError(builder.where, "a probability p in [0, 1)", str(self.p))
        return builder.apply(DROPOUT, (x,), {"p": self.p, "stream": builder.stream()})
