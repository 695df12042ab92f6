"""Softmax cross-entropy: one launch for the rows, one for their mean, one for the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from ....layers.losses.cross_entropy import TOP
from ....layers.step_scalars import LOSS_SCALE
from .kernel_program import KernelProgram, Pointer, launch_blocks, pointers, require, require_float32
from .op_request import OpRequest

_WORD = 8
"""Bytes of a float64 and of an int64."""


def _forward(request: OpRequest) -> KernelProgram:
    logits, labels = request.inputs
    require_float32(request, logits, request.outputs[0])
    require(labels.spec.dtype == request.outputs[1].spec.dtype == "int64", request, "int64 labels and counts")
    rows, classes = logits.spec.shape
    losses, ranks = Pointer(4), Pointer(4, rows * _WORD)
    sizes = (np.int64(rows), np.int64(classes))
    return KernelProgram(
        (
            launch_blocks("softmax_cross_entropy_rows", rows, pointers(0, 1, losses, ranks), *sizes),
            launch_blocks(
                "softmax_cross_entropy_mean", 1, pointers(losses, ranks, 2, 3), np.int64(rows), np.int64(TOP)
            ),
        ),
        2 * rows * _WORD,
    )


def _backward(request: OpRequest) -> KernelProgram:
    logits, labels, scalars = request.inputs
    require_float32(request, logits, request.outputs[0])
    require(labels.spec.dtype == "int64" and scalars.spec.dtype == "float64", request, "int64 labels, float64 scalars")
    rows, classes = logits.spec.shape
    operands = pointers(0, 1, Pointer(2, LOSS_SCALE * _WORD), 3)
    return KernelProgram(
        (launch_blocks("softmax_cross_entropy_backward", rows, operands, np.int64(rows), np.int64(classes)),)
    )


LOSS: Mapping[str, Callable[[OpRequest], KernelProgram]] = MappingProxyType(
    {"softmax_cross_entropy": _forward, "softmax_cross_entropy_backward": _backward}
)
"""By kind; the gradient may overwrite the logits."""
