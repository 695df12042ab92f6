"""Batch normalization and local response normalization.

Batch normalization is three operations, so that a plan can never update the running statistics twice: in training,
`batch_norm_training` makes the output and the batch's mean and variance, which are kept until the backward pass and
only read when the output is computed again, and `batch_norm_update` overwrites the running statistics once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import ClassVar

from ..memory.arguments import LARGEST_SIZE, Argument, Number, Whole
from .builder import GraphBuilder, Layer
from .graph import Op, TensorSpec
from .initializers import Constant
from .operations import Attrs, BackwardBuilder, ModeBuilder, OpKind, ShapeRule, Specs, same_as_first


def _batch_norm_training(builder: ModeBuilder, op: Op, inputs: tuple[int, ...]) -> int:
    x, weight, bias, running_mean, running_var = inputs
    spec = builder.spec(x)
    count = spec.shape[0] * spec.shape[2] * spec.shape[3]
    if count < 2:
        raise ShapeRule(
            "more than one value per channel in training", f"shape {spec.shape}", "Use a larger batch or larger images."
        )
    statistic = TensorSpec((spec.shape[1],), spec.dtype)
    y, mean, var = builder.emit(
        "batch_norm_training", op, (x, weight, bias), {"": spec, "mean": statistic, "var": statistic}, op.attrs
    )
    attrs = MappingProxyType({"momentum": op.attrs["momentum"], "count": count})
    update_inputs = (mean, var, running_mean, running_var)
    builder.emit("batch_norm_update", op, update_inputs, {}, attrs, updates=(running_mean, running_var))
    return y


def _batch_norm_evaluation(builder: ModeBuilder, op: Op, inputs: tuple[int, ...]) -> int:
    return builder.emit("batch_norm_inference", op, inputs, {"": builder.spec(inputs[0])}, op.attrs)[0]


def _batch_norm_backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    x, weight, bias = op.inputs
    _, mean, var = op.outputs
    reads = (x, gradients[0], weight, mean, var)
    return builder.emit("batch_norm_backward", reads, (x, weight, bias), op.attrs)


def _lrn_backward(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
    return builder.emit("lrn_backward", (op.inputs[0], gradients[0]), op.inputs, op.attrs)


def _batch_norm_flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    return 8.0 * math.prod(inputs[0].shape)


def _lrn_flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    return float((2.0 * attrs["size"] + 20.0) * math.prod(inputs[0].shape))


BATCH_NORM = OpKind("batch_norm", same_as_first, training=_batch_norm_training, evaluation=_batch_norm_evaluation)
BATCH_NORM_RELU = OpKind("batch_norm_relu", flops=_batch_norm_flops, inplace=((0, 0),), kept=(1, 2))
"""A batch norm and the ReLU that follows it, which a backend's lowering may make of the two.

(x, weight, bias) → (y, mean, var, mask): `mask` tells in a form of the backend's own where y is positive.
"""
BATCH_NORM_RELU_BACKWARD = OpKind("batch_norm_relu_backward", flops=_batch_norm_flops, inplace=((0, 1), (0, 0)))
"""The gradient of both: (x, dy, weight, mean, var, mask) → (dx, dweight, dbias)."""
BATCH_NORM_RELU_INFERENCE = OpKind("batch_norm_relu_inference", inplace=((0, 0),))
LRN = OpKind("lrn", same_as_first, _lrn_backward, flops=_lrn_flops)
KINDS = (
    BATCH_NORM,
    BATCH_NORM_RELU,
    BATCH_NORM_RELU_BACKWARD,
    BATCH_NORM_RELU_INFERENCE,
    LRN,
    OpKind(
        "batch_norm_training",
        backward=_batch_norm_backward,
        flops=_batch_norm_flops,
        inplace=((0, 0),),
        kept=(1, 2),
    ),
    OpKind("batch_norm_update"),
    OpKind("batch_norm_inference", inplace=((0, 0),)),
    OpKind("batch_norm_backward", flops=_batch_norm_flops, inplace=((0, 1), (0, 0))),
    OpKind("lrn_backward", flops=_lrn_flops),
)


NO_CUMULATIVE = "The cumulative average that None means in PyTorch is not here."


@dataclass(frozen=True)
class BatchNorm2d(Layer):
    """Batch normalization over (N, H, W) of each channel.

    Training: y = weight · (x − mean) / √(var + eps) + bias with the batch's mean and population variance; then
    running = (1 − momentum) · running + momentum · batch, where the variance is the unbiased one.
    Evaluation: the running statistics take the batch's place.

    Shapes: (N, C, H, W) → the same; weight, bias, running_mean, running_var (C,). Source: Ioffe and Szegedy, 2015.

    Attributes:
        eps: at least 0, added to the variance.
        momentum: from 0 to 1, the weight of the batch in the running statistics.
        scale: first value of the weight; the bias starts at 0.
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType(
        {"eps": Number(0), "momentum": Number(0, 1, hint=NO_CUMULATIVE), "scale": Number()}
    )
    pytorch: ClassVar[tuple[str, ...]] = (
        *("num_features", "eps", "momentum", "affine", "track_running_stats", "device", "dtype"),
    )
    _: KW_ONLY
    eps: float = 1e-5
    momentum: float = 0.1
    scale: float = 1.0

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the normalization; raises ShapeError where the input is not (N, C, H, W)."""
        channels = (builder.spec(builder.require_images(x)).shape[1],)
        reads = (
            x,
            builder.parameter("weight", channels, Constant(self.scale)),
            builder.parameter("bias", channels, Constant(0.0)),
            builder.buffer("running_mean", channels, Constant(0.0)),
            builder.buffer("running_var", channels, Constant(1.0)),
        )
        return builder.apply(BATCH_NORM, reads, {"eps": self.eps, "momentum": self.momentum})


@dataclass(frozen=True)
class LocalResponseNorm(Layer):
    """Normalization across neighbouring channels: y = x / (k + alpha / size · Σ x²)^beta over `size` channels.

    Shapes: (N, C, H, W) → the same. Source: Krizhevsky et al., 2012; alpha is divided by `size` as in PyTorch.
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType(
        {"size": Whole(1, LARGEST_SIZE), "alpha": Number(0), "beta": Number(), "k": Number(0)}
    )
    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add the normalization; raises ShapeError where the input is not (N, C, H, W)."""
        builder.require_images(x)
        attrs = {"size": self.size, "alpha": self.alpha, "beta": self.beta, "k": self.k}
        return builder.apply(LRN, (x,), attrs)
