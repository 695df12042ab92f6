"""Dropout. The mask is never stored: the backward pass, and any recomputation, draws the same numbers again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from ..memory.arguments import Argument, Number
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


def scale_of_kept(p: float) -> float:
    """Return the factor 1 / (1 − p) of the elements that are kept with a probability of 1 − p; 0 where none is."""
    return 1.0 / (1.0 - p) if p < 1 else 0.0


@dataclass(frozen=True)
class Dropout(Layer):
    """Zero each element with probability p and scale the others by 1 / (1 − p); nothing in evaluation.

    With p = 1 all elements and all gradients are zero.

    The mask is a function of (seed, step, layer) alone, the same in float32 and float64 and under every plan.
    Source: Srivastava et al., 2014.
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType({"p": Number(0, 1)})
    pytorch: ClassVar[tuple[str, ...]] = ("p", "inplace")
    p: float = 0.5

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the operation."""
        return builder.apply(DROPOUT, (x,), {"p": self.p, "stream": builder.stream()})
