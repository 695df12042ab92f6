"""Fully connected layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import ClassVar

from ..memory.arguments import LARGEST_SIZE, Argument, Switch, Whole
from ..memory.errors import ShapeError
from .builder import GraphBuilder, Layer
from .graph import TensorSpec
from .initializers import AN_INITIALIZER, Constant, Initializer, Uniform
from .operations import Attrs, OpKind, Specs, append_weighted_gradients


def _shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (TensorSpec((inputs[0].shape[0], inputs[1].shape[0]), inputs[0].dtype),)


def _flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    return 2.0 * math.prod(inputs[0].shape) * inputs[1].shape[0]


def _data_flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    dy, weight = inputs
    return 2.0 * dy.shape[0] * math.prod(weight.shape)


def _weights_flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    return 2.0 * inputs[0].shape[0] * math.prod(outputs[0].shape)


LINEAR = OpKind("linear", _shapes, append_weighted_gradients, flops=_flops, heavy=True)
KINDS = (
    LINEAR,
    OpKind("linear_backward_data", flops=_data_flops, heavy=True),
    OpKind("linear_backward_weights", flops=_weights_flops, heavy=True),
)


@dataclass(frozen=True)
class Linear(Layer):
    """Fully connected layer y = x · weightᵀ + bias; the input's features are inferred.

    Shapes: (N, F) → (N, out_features), weight (out_features, F), bias (out_features,).
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType(
        {"out_features": Whole(1, LARGEST_SIZE), "bias": Switch(), "initializer": AN_INITIALIZER}
    )
    pytorch: ClassVar[tuple[str, ...]] = ("in_features", "out_features", "bias", "device", "dtype")
    out_features: int
    _: KW_ONLY
    bias: bool = True
    initializer: Initializer = Uniform()

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the product; raises ShapeError where the input is not (N, F)."""
        shape = builder.spec(x).shape
        if len(shape) != 2:
            raise ShapeError(builder.where, "features of shape (N, F)", f"shape {shape}", "Put Flatten() before it.")
        weight = builder.parameter("weight", (self.out_features, shape[1]), self.initializer)
        bias = (builder.parameter("bias", (self.out_features,), Constant(0.0)),) if self.bias else ()
        return builder.apply(LINEAR, (x, weight, *bias))
