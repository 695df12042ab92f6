"""Fully connected layers: one matrix product each, in spans of its depth; the bias's gradient is summed in float64."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from .blocks import channel_blocks, channel_sums
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec, float64, store
from .products import part_of, product


def _forward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    (images, features), (made, _) = op.inputs[0].shape, op.inputs[1].shape
    return (NumpyKernel("matmul", _run_forward, (part_of((images, made), features, op.dtype),)),)


def _run_forward(x: Array, weight: Array, *rest: Array) -> None:
    *bias, y, part = rest
    product(x, weight.T, y, part)
    if bias:
        np.add(y, bias[0], out=y)


def _backward_data(op: OpSpec) -> tuple[NumpyKernel, ...]:
    made, features = op.inputs[1].shape
    return (NumpyKernel("matmul", _run_data, (part_of((op.inputs[0].shape[0], features), made, op.dtype),)),)


def _run_data(dy: Array, weight: Array, dx: Array, part: Array) -> None:
    product(dy, weight, dx, part)


def _backward_weights(op: OpSpec) -> tuple[NumpyKernel, ...]:
    if len(op.outputs) == 1:
        return (NumpyKernel("matmul", _run_weights),)
    images, features = op.inputs[1].shape
    elements, blocks = channel_blocks(images, features, 1)

    def run(x: Array, dy: Array, dw: Array, db: Array, buffer: Array, total: Array, part: Array) -> None:
        _run_weights(x, dy, dw)
        channel_sums(dy.reshape(images, features, 1), blocks, buffer, total, part)
        store(db, total)

    return (NumpyKernel("matmul", run, (float64(elements), float64(features), float64(features))),)


def _run_weights(x: Array, dy: Array, dw: Array) -> None:
    np.matmul(dy.T, x, out=dw)


LINEAR: Mapping[str, Implementation] = MappingProxyType(
    {
        "linear": _forward,
        "linear_backward_data": _backward_data,
        "linear_backward_weights": _backward_weights,
    }
)
