"""Stochastic gradient descent as `layers/optimizers/sgd.py` defines it, a piece of the parameter at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ....layers.graph import TensorSpec
from ....layers.step_scalars import LEARNING_RATE
from .blocks import flat_spans
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec

PIECE_ELEMENTS = 1 << 14
"""Elements of a piece: two scratch arrays of float64 are 256 KiB."""


def _sgd(op: OpSpec) -> tuple[NumpyKernel, ...]:
    attrs = op.attrs
    momentum, weight_decay, nesterov = attrs["momentum"], attrs["weight_decay"], attrs["nesterov"]
    longest, pieces = flat_spans(math.prod(op.inputs[0].shape), PIECE_ELEMENTS)

    def run(weight: Array, gradient: Array, *rest: Array) -> None:
        *velocity, scalars, decayed, step = rest
        rate = float(scalars[LEARNING_RATE])
        weights, gradients = weight.reshape(-1), gradient.reshape(-1)
        for span in pieces:
            w, g = weights[span], gradients[span]
            sum_, move = decayed[: span.stop - span.start], step[: span.stop - span.start]
            if weight_decay:
                np.multiply(w, weight_decay, out=sum_)
                np.add(sum_, g, out=sum_)
                g = sum_
            if velocity:
                v = velocity[0].reshape(-1)[span]
                np.multiply(v, momentum, out=v)
                np.add(v, g, out=v)
                if nesterov:
                    np.multiply(v, momentum, out=move)
                    np.add(move, g, out=move)
                    g = move
                else:
                    g = v
            np.multiply(g, rate, out=move)
            np.subtract(w, move, out=w)

    return (NumpyKernel("pieces", run, (TensorSpec((longest,), op.dtype),) * 2),)


OPTIMIZER: Mapping[str, Implementation] = MappingProxyType({"sgd_update": _sgd})
