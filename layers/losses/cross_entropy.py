"""Softmax cross-entropy with the counts for top-1 and top-5 accuracy: its declaration and that of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..assembly import NO_ATTRS
from ..graph import Op, TensorSpec
from ..operations import Attrs, BackwardBuilder, OpKind, ShapeRule, Specs
from .loss import Target

TOP = 5


def _shapes(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    logits, _labels = inputs
    return TensorSpec((1,), logits.dtype), TensorSpec((2,), "int64")


SOFTMAX_CROSS_ENTROPY = OpKind("softmax_cross_entropy", _shapes)
SOFTMAX_CROSS_ENTROPY_BACKWARD = OpKind("softmax_cross_entropy_backward", inplace=((0, 0),))
KINDS = (SOFTMAX_CROSS_ENTROPY, SOFTMAX_CROSS_ENTROPY_BACKWARD)


@dataclass(frozen=True)
class CrossEntropy:
    """Mean over the batch of log Σ_j exp(l_j) − l_label, for logits l of shape (N, classes) and labels (N,).

    It counts the images whose label has the largest logit (`top1`), and is among the five largest (`top5`).
    """

    kind: ClassVar[str] = SOFTMAX_CROSS_ENTROPY.name
    metrics: ClassVar[tuple[str, ...]] = ("top1", "top5")

    @property
    def attrs(self) -> Mapping[str, object]:
        """Nothing is fixed."""
        return NO_ATTRS

    def target(self, output: TensorSpec) -> Target:
        """A label for each image, int64; raises `ShapeRule` where the output is not of shape (N, classes)."""
        if len(output.shape) != 2:
            hint = "End the network with Flatten() and Linear(classes)."
            raise ShapeRule("logits of shape (N, classes)", f"shape {output.shape}", hint)
        images, classes = output.shape
        return Target((images,), "int64", classes)

    def gradient(self, builder: BackwardBuilder, op: Op, scalars: int) -> int:
        """Emit d loss / d logits = (softmax − one-hot) · loss_scale / N."""
        logits, labels = op.inputs
        inputs = logits, labels, scalars
        return builder.emit(SOFTMAX_CROSS_ENTROPY_BACKWARD.name, inputs, (logits,), op.attrs)[0]
