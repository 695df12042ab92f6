"""Softmax cross-entropy with the counts for top-1 and top-5 accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Op, TensorSpec
from .operations import Attrs, BackwardBuilder, OpKind, ShapeRule, Specs

TOP = 5


def _shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    logits, _labels = inputs
    if len(logits.shape) != 2:
        raise ShapeRule(
            "logits of shape (N, classes)",
            f"shape {logits.shape}",
            "End the network with Flatten() and Linear(classes).",
        )
    return TensorSpec((1,), logits.dtype), TensorSpec((2,), "int64")


def _softmax_shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0],)


def loss_gradient(builder: BackwardBuilder, op: Op, scalars: int) -> Sequence[int]:
    """Emit d loss / d logits = (softmax − one-hot) · loss_scale / N."""
    logits, labels = op.inputs
    return builder.emit("softmax_cross_entropy_backward", (logits, labels, scalars), (logits,), op.attrs)


CROSS_ENTROPY = OpKind("softmax_cross_entropy", _shapes)
KINDS = (CROSS_ENTROPY, OpKind("softmax_cross_entropy_backward", inplace=((0, 0),)))
