"""What the package asks of a loss, from which targets, the graph's end, its gradient and the metrics follow.

A loss declares one operation, which reads (output, target) and makes the loss of shape (1,), a mean over the samples
of the batch; then, where the loss has metrics, their counts as int64 of shape (number of metrics,); then whatever the
gradient alone reads. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...memory.errors import ConfigError, GraphError, ShapeError
from ..graph import Op, TensorSpec
from ..members import read_fixed_attrs, require_kind, require_members, require_names
from ..operations import BackwardBuilder, OpKind, ShapeRule
from ..rules import read_specs

MEMBERS = ("kind", "attrs", "metrics", "target", "gradient")


@dataclass(frozen=True, slots=True)
class Target:
    """What a loss compares the network's output with; batches are checked by this.

    Attributes:
        shape: of a full batch; the first axis is that of the samples.
        dtype: numpy's name of an integer or floating type.
        classes: the targets are numbers of classes, from 0 to `classes` − 1; 0 where they are no classes.
    """

    shape: tuple[int, ...]
    dtype: str
    classes: int = 0

    def __post_init__(self) -> None:
        given = f"shape {self.shape!r}, {self.dtype!r}, {self.classes!r} classes"
        try:
            (spec,) = read_specs("Target", (TensorSpec(self.shape, self.dtype),))
        except GraphError as error:
            raise ConfigError("Target", error.expected, given) from None
        whole = isinstance(self.classes, int) and self.classes >= 0
        if not whole or np.dtype(spec.dtype).kind not in "if" or (self.classes and spec.dtype != "int64"):
            expected = "integers or real numbers, and for classes int64 and how many there are"
            raise ConfigError("Target", expected, given)
        if self.classes and len(spec.shape) != 1:
            raise ConfigError("Target", "one class a sample: shape (N,)", given)
        object.__setattr__(self, "shape", spec.shape)
        object.__setattr__(self, "dtype", spec.dtype)

    @property
    def spec(self) -> TensorSpec:
        """Shape and type of the tensor that the host writes."""
        return TensorSpec(self.shape, self.dtype)


class Loss(Protocol):
    """What training makes small.

    An object of any class serves that has these members; a frozen dataclass does well.
    """

    @property
    def kind(self) -> str:
        """Name of the operation from (output, target) to the loss; its shape rule may refuse outputs."""

    @property
    def attrs(self) -> Mapping[str, object]:
        """What is fixed in the operation: plain values, part of every checkpoint's identity."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what the operation counts beside the loss: for each, in how many samples of the batch it is so."""

    def target(self, output: TensorSpec) -> Target:
        """What a network needs whose output has this shape and type; raises `ShapeRule` where there is none."""

    def gradient(self, builder: BackwardBuilder, op: Op, scalars: int) -> int:
        """Emit the gradient of the loss with respect to the output, times the loss scale; return its tensor.

        Args:
            builder: takes backward operations.
            op: the loss's own operation, with its inputs and outputs.
            scalars: the tensor of step scalars, which holds the loss scale at `step_scalars.LOSS_SCALE`.
        """


def find_target(loss: Loss, output: TensorSpec) -> Target:
    """What a loss compares an output of this shape and type with.

    Raises:
        ShapeError: the loss takes no such output.
        ConfigError: what the loss declares is no target for as many samples as the output has.
    """
    try:
        target: object = loss.target(output)
    except ShapeRule as rule:
        raise ShapeError("loss", rule.expected, rule.actual, rule.hint) from None
    if not isinstance(target, Target) or target.shape[0] != output.shape[0]:
        expected = f"a Target with a first axis of {output.shape[0]} samples"
        raise ConfigError(f"{type(loss).__name__}.target", expected, repr(target))
    return target


def require_loss(value: object, kinds: Mapping[str, OpKind]) -> None:
    """Check that an object is a loss; `kinds` are the kinds of operation that are registered.

    Raises:
        ConfigError: it lacks a member, or has one that makes no sense; says which, and what was expected.
    """
    require_members("loss", value, MEMBERS, "CrossEntropy()")
    loss: Loss = value  # type: ignore[assignment]  # it has the members
    name = type(value).__name__
    if require_kind(name, loss.kind, kinds).shapes is None:
        expected = "a kind of operation with a shape rule"
        raise ConfigError(f"{name}.kind", expected, f"{loss.kind!r}, which has none", "Give OpKind its `shapes`.")
    read_fixed_attrs(name, loss.attrs)
    require_names(f"{name}.metrics", loss.metrics)
    for member in ("target", "gradient"):
        if not callable(getattr(loss, member)):
            raise ConfigError(f"{name}.{member}", "a method", repr(getattr(loss, member)))
