"""Layers that bring several tensors together: sums and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..memory.errors import GraphError
from .builder import GraphBuilder
from .graph import Op, TensorSpec
from .operations import Attrs, BackwardBuilder, OpKind, ShapeRule, Specs


def _add_shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    first = inputs[0]
    for other in inputs[1:]:
        if other != first:
            raise ShapeRule(
                f"tensors of one shape to add, the first being {first.shape} {first.dtype}",
                f"{other.shape} {other.dtype}",
                "Give the shortcut the same stride and channels as the body.",
            )
    return (first,)


def _concat_shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    first = inputs[0]
    for other in inputs[1:]:
        same = len(other.shape) == len(first.shape) and (other.shape[0], *other.shape[2:], other.dtype) == (
            first.shape[0],
            *first.shape[2:],
            first.dtype,
        )
        if not same:
            raise ShapeRule(
                f"tensors that differ in channels alone, the first being {first.shape} {first.dtype}",
                f"{other.shape} {other.dtype}",
            )
    return (TensorSpec((first.shape[0], sum(i.shape[1] for i in inputs), *first.shape[2:]), first.dtype),)


def _add_backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    return (gradients[0], gradients[0])


def _concat_backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    return builder.emit("split", gradients, op.inputs, op.attrs)


ADD = OpKind("add", _add_shapes, _add_backward, inplace=((0, 0), (0, 1)), flat=True)
CONCAT = OpKind("concat", _concat_shapes, _concat_backward)
ADD_RELU = OpKind("add_relu", inplace=ADD.inplace, flat=True)
"""A sum and the ReLU that follows it, which a backend's lowering may make of the two."""
KINDS = (ADD, ADD_RELU, CONCAT, OpKind("split"))


@dataclass(frozen=True)
class Add:
    """Sum of tensors of one shape, two at a time from the left."""

    def merge(self, builder: GraphBuilder, tensors: Sequence[int]) -> int:
        """Add the sums; raises ShapeError for unlike tensors."""
        total = _several(builder, tensors)[0]
        for number, other in enumerate(tensors[1:]):
            with builder.scope("" if number == 0 else f"sum{number + 1}"):
                total = builder.apply(ADD, (total, other))
        return total


@dataclass(frozen=True)
class Concat:
    """Tensors joined along the channels: (N, C₁, …), (N, C₂, …) → (N, C₁ + C₂, …)."""

    def merge(self, builder: GraphBuilder, tensors: Sequence[int]) -> int:
        """Add the concatenation; raises ShapeError for tensors that differ in more than channels."""
        return builder.apply(CONCAT, _several(builder, tensors))


Merge = Add | Concat


def _several(builder: GraphBuilder, tensors: Sequence[int]) -> Sequence[int]:
    if len(tensors) < 2:
        raise GraphError(builder.where, "at least two branches to merge", str(len(tensors)))
    return tensors
