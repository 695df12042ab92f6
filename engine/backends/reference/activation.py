"""ReLU, sigmoid and tanh, and their gradients from the output alone. A NaN stays a NaN."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from ....layers.graph import TensorSpec
from .blocks import flat_spans
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec

Piece = Callable[..., None]
"""Computes one piece from flat pieces of inputs, outputs and scratch."""


def _pieces(piece: Piece, *dtypes: str) -> Implementation:
    """Make an implementation that works through flat pieces, with a scratch array of each type; "" is the operand's."""

    def implementation(op: OpSpec) -> tuple[NumpyKernel, ...]:
        elements = op.outputs[0].nbytes // np.dtype(op.outputs[0].dtype).itemsize
        longest, pieces = flat_spans(elements)
        operands = len(op.inputs) + len(op.outputs)

        def run(*arrays: Array) -> None:
            flat = [a.reshape(-1) for a in arrays[:operands]]
            for span in pieces:
                length = span.stop - span.start
                piece(*(a[span] for a in flat), *(a[:length] for a in arrays[operands:]))

        scratch = tuple(TensorSpec((longest,), dtype or op.dtype) for dtype in dtypes)
        return (NumpyKernel("pieces", run, scratch),)

    return implementation


def _relu(x: Array, y: Array) -> None:
    np.maximum(x, 0, out=y)


def _relu_backward(y: Array, dy: Array, dx: Array, closed: Array) -> None:
    np.less_equal(y, 0, out=closed)
    np.copyto(dx, dy)
    np.copyto(dx, 0, where=closed)


def _sigmoid(x: Array, y: Array, decay: Array, positive: Array) -> None:
    """1 / (1 + e^−x) for x ≥ 0 and e^x / (1 + e^x) below: nothing overflows, and small values keep their digits."""
    np.greater_equal(x, 0, out=positive)
    np.abs(x, out=decay)
    np.negative(decay, out=decay)
    np.exp(decay, out=decay)
    np.add(decay, 1, out=y)
    np.copyto(decay, 1, where=positive)
    np.divide(decay, y, out=y)


def _sigmoid_backward(y: Array, dy: Array, dx: Array, slope: Array) -> None:
    np.subtract(1, y, out=slope)
    np.multiply(slope, y, out=slope)
    np.multiply(slope, dy, out=dx)


def _tanh(x: Array, y: Array) -> None:
    np.tanh(x, out=y)


def _tanh_backward(y: Array, dy: Array, dx: Array, slope: Array) -> None:
    np.multiply(y, y, out=slope)
    np.subtract(1, slope, out=slope)
    np.multiply(slope, dy, out=dx)


ACTIVATION: Mapping[str, Implementation] = MappingProxyType(
    {
        "relu": _pieces(_relu),
        "relu_backward": _pieces(_relu_backward, "bool"),
        "sigmoid": _pieces(_sigmoid, "", "bool"),
        "sigmoid_backward": _pieces(_sigmoid_backward, ""),
        "tanh": _pieces(_tanh),
        "tanh_backward": _pieces(_tanh_backward, ""),
    }
)
