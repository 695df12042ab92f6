"""What the graph knows about a kind of operation.

Each kind is declared once, beside the layer that it belongs to: which shapes it makes, how its gradient is computed
(and thereby what the backward pass reads), which output may overwrite which input, and everything else that a planner
or a backend must know of it without knowing its name. Kernels are the backends' business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .graph import Op, TensorSpec

Attrs = Mapping[str, Any]
Specs = Sequence[TensorSpec]
Shapes = Callable[[Specs, Attrs], tuple[TensorSpec, ...]]
Flops = Callable[[Specs, Specs, Attrs], float]


class ShapeRule(Exception):  # noqa: N818 - never reaches a user: the builder turns it into a ShapeError with the layer's name
    """Raised by a shape rule: what it expected of its inputs and what it got."""

    def __init__(self, expected: str, actual: str, hint: str = "") -> None:
        super().__init__(expected, actual, hint)
        self.expected = expected
        self.actual = actual
        self.hint = hint


class BackwardBuilder(Protocol):
    """What an operation's gradient rule may ask of the graph under construction."""

    def spec(self, tensor: int) -> TensorSpec:
        """Shape and type of a tensor."""

    def needs_gradient(self, tensor: int) -> bool:
        """Whether anybody wants the gradient of this tensor: not of images or labels."""

    def emit(self, kind: str, inputs: Sequence[int], like: Sequence[int], attrs: Attrs) -> tuple[int, ...]:
        """Append a backward operation whose outputs have the shapes of the tensors `like`; return its outputs."""


class ModeBuilder(Protocol):
    """What turns a forward operation into that of training or of evaluation."""

    def emit(
        self,
        kind: str,
        op: Op,
        inputs: Sequence[int],
        outputs: Mapping[str, TensorSpec],
        attrs: Attrs,
        updates: Sequence[int] = (),
    ) -> tuple[int, ...]:
        """Append an operation that stands for `op`; the outputs are named and return in order."""

    def spec(self, tensor: int) -> TensorSpec:
        """Shape and type of a tensor."""

    @property
    def key(self) -> int:
        """The tensor that holds the random seed and the step number."""


Rewrite = Callable[[ModeBuilder, Op, tuple[int, ...]], int]
"""From the builder, a forward operation and its inputs in the new graph to the tensor that replaces its output."""

Backward = Callable[[BackwardBuilder, Op, tuple[int, ...]], Sequence[int | None]]
"""From the builder, a forward operation and the gradients of its differentiable outputs to one gradient per input."""


def elementwise(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    """One operation per element that is made."""
    return float(sum(math.prod(o.shape) for o in outputs))


def same_as_first(inputs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """Shape rule of an operation that keeps the shape of its first input."""
    return (inputs[0],)


def append_weighted_gradients(builder: BackwardBuilder, op: Op, gradients: tuple[int, ...]) -> tuple[int | None, ...]:
    """Gradient rule of an operation (x, weight[, bias]) → y that is a product of x and weight, plus the bias.

    Its kind has two others beside it, named after it: `…_backward_weights` makes the gradients of weight and bias from
    x and dy, and `…_backward_data` that of x from dy and weight, where it is needed.
    """
    x, weight, *bias = op.inputs
    (dy,) = gradients
    of_weights = builder.emit(f"{op.kind}_backward_weights", (x, dy), (weight, *bias), op.attrs)
    if not builder.needs_gradient(x):
        return (None, *of_weights)
    return (*builder.emit(f"{op.kind}_backward_data", (dy, weight), (x,), op.attrs), *of_weights)


@dataclass(frozen=True, slots=True)
class OpKind:
    """Declaration of a kind of operation.

    Attributes:
        name: unique among all kinds.
        shapes: maps the specs of the inputs to those of the outputs, and raises `ShapeRule` where they do not fit. None
            for kinds that only gradient rules emit, whose outputs are shaped like given tensors.
        backward: the gradient rule; None where there is no gradient.
        training: makes what stands for this kind in a training graph; None keeps it.
        evaluation: makes what stands for it in an evaluation graph; None keeps it.
        flops: the number of arithmetic operations of one run.
        inplace: pairs (output, input) of positions whose memory may be shared when the input dies here.
        kept: positions of outputs that are never recomputed: a repeated run reads them instead of making them.
        heavy: whether it is a convolution or a matrix product, worth ending a block of the chain before, and worth
            choosing a kernel for.
        random: whether it draws numbers. They must depend on (seed, step, `stream` attribute) alone, so that a repeated
            run draws the same.
        flat: whether each element that it makes or updates depends on the elements at the same place of its inputs
            alone, and is zero where all of these are. A backend may then run it over the bytes of whatever layout its
            operands share, in one piece and with the zeros that pad the layout. All that has the first input's shape
            and type takes part; a small operand such as a step's scalars is read whole. Operands that an update
            overwrites take the layout of its first input.
        reshapes: whether its output holds the elements of its input in the same order, under another shape: in place
            it moves nothing, where the layouts of both are plain.
        converts: whether it changes nothing but how a tensor is stored. Lowering inserts such an operation for the one
            that follows, and no block of the chain begins between the two.
    """

    name: str
    shapes: Shapes | None = None
    backward: Backward | None = None
    training: Rewrite | None = None
    evaluation: Rewrite | None = None
    flops: Flops = elementwise
    inplace: tuple[tuple[int, int], ...] = ()
    kept: tuple[int, ...] = ()
    heavy: bool = False
    random: bool = False
    flat: bool = False
    reshapes: bool = False
    converts: bool = False

    @property
    def needs_kernels(self) -> bool:
        """Whether operations of this kind are run; not so where every mode puts another kind in its place."""
        return self.training is None or self.evaluation is None
