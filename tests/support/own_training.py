"""An optimizer and losses as a program outside the package writes them, from the public names alone.

Adam keeps two slots and reads two step scalars. `MeanSquaredError` has float targets; `Huber` counts how many samples
are close, and its gradient reads what the forward operation has saved, not the target; the gradient of `MeanOutput`
reads neither output nor target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import bathyal as bt
from bathyal.layers.step_scalars import FIRST_OWN, LOSS_SCALE

STEP_SIZE, ROOT = FIRST_OWN, FIRST_OWN + 1


@dataclass(frozen=True)
class Adam:
    """Adam, as PyTorch computes it. Source: Kingma and Ba, 2015."""

    kind = "own_adam_update"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def attrs(self) -> Mapping[str, object]:
        return {"betas": self.betas, "eps": self.eps}

    @property
    def slots(self) -> Mapping[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def step_scalars(self, step: int, learning_rate: float) -> Mapping[str, float]:
        first, second = self.betas
        return {"step_size": learning_rate / (1 - first**step), "root": (1 - second**step) ** 0.5}


def adam_kernels(op: bt.OpSpec) -> tuple[bt.NumpyKernel, ...]:
    first, second = op.attrs["betas"]
    eps = op.attrs["eps"]

    def run(weight: Any, gradient: Any, average: Any, square: Any, scalars: Any, scratch: Any) -> None:
        step_size, root = float(scalars[STEP_SIZE]), float(scalars[ROOT])
        np.subtract(gradient, average, out=scratch)
        np.multiply(scratch, 1 - first, out=scratch)
        np.add(average, scratch, out=average)
        np.multiply(gradient, gradient, out=scratch)
        np.multiply(scratch, 1 - second, out=scratch)
        np.multiply(square, second, out=square)
        np.add(square, scratch, out=square)
        np.sqrt(square, out=scratch)
        np.divide(scratch, root, out=scratch)
        np.add(scratch, eps, out=scratch)
        np.divide(average, scratch, out=scratch)
        np.multiply(scratch, step_size, out=scratch)
        np.subtract(weight, scratch, out=weight)

    return (bt.NumpyKernel("numpy", run, (op.inputs[0],)),)


def _scalar_loss(inputs: Any, attrs: Any) -> tuple[bt.TensorSpec, ...]:
    return (bt.TensorSpec((1,), inputs[0].dtype),)


@dataclass(frozen=True)
class MeanSquaredError:
    """Mean over all elements of (output − target)²; its gradient is 2 (output − target) · loss_scale / elements."""

    kind = "own_squared_error"
    metrics = ()
    attrs = {}  # noqa: RUF012 - read only

    def target(self, output: bt.TensorSpec) -> bt.Target:
        return bt.Target(output.shape, output.dtype)

    def gradient(self, builder: Any, op: Any, scalars: int) -> int:
        output, target = op.inputs
        return builder.emit("own_squared_error_backward", (output, target, scalars), (output,), op.attrs)[0]


def squared_error_kernels(op: bt.OpSpec) -> tuple[bt.NumpyKernel, ...]:
    def run(output: Any, target: Any, loss: Any, scratch: Any) -> None:
        np.subtract(output, target, out=scratch)
        np.multiply(scratch, scratch, out=scratch)
        loss[0] = np.mean(scratch, dtype=np.float64)

    return (bt.NumpyKernel("numpy", run, (op.inputs[0],)),)


def squared_error_backward(output: Any, target: Any, scalars: Any, gradient: Any) -> None:
    np.subtract(output, target, out=gradient)
    np.multiply(gradient, 2 * float(scalars[LOSS_SCALE]) / gradient.size, out=gradient)


@dataclass(frozen=True)
class Huber:
    """Mean over all elements of r (d − r / 2), d = output − target and r = d cut off at ±delta; saves r."""

    kind = "own_huber"
    metrics = ("close",)
    delta: float = 1.0

    @property
    def attrs(self) -> Mapping[str, object]:
        return {"delta": self.delta}

    def target(self, output: bt.TensorSpec) -> bt.Target:
        if len(output.shape) != 2:
            raise bt.ShapeRule("an output of shape (N, features)", f"shape {output.shape}", "End with Flatten().")
        return bt.Target(output.shape, output.dtype)

    def gradient(self, builder: Any, op: Any, scalars: int) -> int:
        saved = op.outputs[2]
        return builder.emit("own_huber_backward", (saved, scalars), (op.inputs[0],), op.attrs)[0]


def _huber_shapes(inputs: Any, attrs: Any) -> tuple[bt.TensorSpec, ...]:
    return bt.TensorSpec((1,), inputs[0].dtype), bt.TensorSpec((1,), "int64"), inputs[0]


def huber_kernels(op: bt.OpSpec) -> tuple[bt.NumpyKernel, ...]:
    delta = op.attrs["delta"]

    def run(output: Any, target: Any, loss: Any, close: Any, saved: Any, scratch: Any) -> None:
        np.subtract(output, target, out=scratch)
        np.clip(scratch, -delta, delta, out=saved)
        close[0] = np.count_nonzero((scratch == saved).all(axis=1))
        np.subtract(scratch, saved / 2, out=scratch)
        np.multiply(scratch, saved, out=scratch)
        loss[0] = np.mean(scratch, dtype=np.float64)

    return (bt.NumpyKernel("numpy", run, (op.inputs[0],)),)


def huber_backward(saved: Any, scalars: Any, gradient: Any, *, delta: float) -> None:
    np.multiply(saved, float(scalars[LOSS_SCALE]) / saved.size, out=gradient)


@dataclass(frozen=True)
class MeanOutput:
    """Mean over all elements of the output; whatever the target is."""

    kind = "own_mean_output"
    metrics = ()
    attrs = {}  # noqa: RUF012 - read only

    def target(self, output: bt.TensorSpec) -> bt.Target:
        return bt.Target(output.shape[:1], "int32")

    def gradient(self, builder: Any, op: Any, scalars: int) -> int:
        return builder.emit("own_mean_output_backward", (scalars,), (op.inputs[0],), op.attrs)[0]


def mean_output(output: Any, target: Any, loss: Any) -> None:
    loss[0] = np.mean(output, dtype=np.float64)


def mean_output_backward(scalars: Any, gradient: Any) -> None:
    gradient.fill(float(scalars[LOSS_SCALE]) / gradient.size)


OPERATIONS = (
    (bt.OpKind("own_adam_update", flat=True), {"kernels": adam_kernels}),
    (bt.OpKind("own_squared_error", _scalar_loss), {"kernels": squared_error_kernels}),
    (bt.OpKind("own_squared_error_backward", inplace=((0, 0),)), {"run": squared_error_backward}),
    (bt.OpKind("own_huber", _huber_shapes), {"kernels": huber_kernels}),
    (bt.OpKind("own_huber_backward", inplace=((0, 0),)), {"run": huber_backward}),
    (bt.OpKind("own_mean_output", _scalar_loss), {"run": mean_output}),
    (bt.OpKind("own_mean_output_backward"), {"run": mean_output_backward}),
)


@contextmanager
def register_own_training() -> Iterator[None]:
    """The operations above are registered inside."""
    for kind, how in OPERATIONS:
        bt.register_operation(kind, **how)
    try:
        yield
    finally:
        for kind, _ in OPERATIONS:
            bt.unregister_operation(kind.name)
