"""Dropout with the numbers of the CPU: a logical element is kept on a GPU exactly where it is kept there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from ....layers.dropout import scale_of_kept
from .kernel_program import (
    KernelProgram,
    element_type,
    elements,
    launch_items,
    plain_alike,
    pointers,
    require,
    same_order,
)
from .op_request import PLAIN, OpRequest

BLOCK = 8
"""Numbers that the generator makes at a time."""


def _dropout(request: OpRequest) -> KernelProgram:
    (x, _), (y,) = request.inputs, request.outputs
    suffix = element_type(request, x, y).suffix
    require(same_order(x, y), request, "tensors of one shape and layout")
    p, count, shape = request.attrs["p"], elements(x), x.spec.shape
    drawn = np.int64(request.attrs["stream"]), np.float32(p), np.float32(scale_of_kept(p))
    if x.layout == PLAIN or plain_alike(shape):
        call = launch_items("dropout_plain" + suffix, -(-count // BLOCK), pointers(0, 1, 2), np.int64(count), *drawn)
    else:
        planes, pixels = shape[0] * shape[1], shape[2] * shape[3]
        # A plane that begins at the last number of a block touches the most.
        runs = (pixels - 1 + BLOCK - 1) // BLOCK + 1
        sizes = (np.int64(planes), np.int64(shape[1]), np.int64(pixels), np.int64(runs))
        call = launch_items("dropout_channels_last" + suffix, planes * runs, pointers(0, 1, 2), *sizes, *drawn)
    return KernelProgram((call,))


DROPOUT: Mapping[str, Callable[[OpRequest], KernelProgram]] = MappingProxyType(
    {"dropout_training": _dropout, "dropout_backward": _dropout}
)
"""By kind; both may run in place."""
