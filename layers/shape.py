"""Changes of shape that move no byte when they run in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .builder import GraphBuilder, Layer
from .graph import Op, TensorSpec
from .operations import Attrs, BackwardBuilder, OpKind, Specs


def _shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    n, *rest = inputs[0].shape
    return (TensorSpec((n, math.prod(rest)), inputs[0].dtype),)


def _backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    return builder.emit("reshape", gradients, op.inputs, op.attrs)


FLATTEN = OpKind("flatten", _shapes, _backward, inplace=((0, 0),), reshapes=True)
CONVERT = OpKind("convert", converts=True)
"""A change of a backend's layout, which lowering inserts."""
KINDS = (FLATTEN, OpKind("reshape", inplace=((0, 0),), reshapes=True), CONVERT)


@dataclass(frozen=True)
class Flatten(Layer):
    """All dimensions but the first become one: (N, C, H, W) → (N, C·H·W)."""

    pytorch: ClassVar[tuple[str, ...]] = ("start_dim", "end_dim")

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the change of shape."""
        return builder.apply(FLATTEN, (x,))
