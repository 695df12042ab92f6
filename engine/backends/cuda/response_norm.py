"""Local response normalization: one launch each for the output and for the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from .kernel_program import (
    THREADS,
    KernelProgram,
    Scalar,
    elements,
    image_type,
    launch_blocks,
    launch_items,
    pointers,
    require,
)
from .op_request import OpRequest

MOST_NEIGHBOURS = 1024
"""Channels besides its own that a window may reach, for the gradient: the size of an array in the kernel."""


def _window(request: OpRequest) -> tuple[int, int]:
    """Channels that the window reaches down and up; no farther than there are."""
    size, most = request.attrs["size"], request.inputs[0].spec.shape[1] - 1
    return min(size // 2, most), min((size - 1) // 2, most)


def _scalars(request: OpRequest) -> tuple[Scalar, ...]:
    attrs, (before, after) = request.attrs, _window(request)
    sizes = (np.int32(request.inputs[0].spec.shape[1]), np.int32(before), np.int32(after))
    factors = (attrs["alpha"] / attrs["size"], attrs["k"], attrs["beta"])
    return (np.int64(elements(request.inputs[0])), *sizes, *(np.float32(f) for f in factors))


def _forward(request: OpRequest) -> KernelProgram:
    (x,), (y,) = request.inputs, request.outputs
    function = "lrn" + image_type(request, x, y).suffix
    return KernelProgram((launch_items(function, elements(x), pointers(0, 1), *_scalars(request)),))


def _backward(request: OpRequest) -> KernelProgram:
    (x, dy), (dx,), attrs = request.inputs, request.outputs, request.attrs
    function = "lrn_backward" + image_type(request, x, dy, dx).suffix
    require(sum(_window(request)) <= MOST_NEIGHBOURS, request, f"a window of at most {MOST_NEIGHBOURS + 1} channels")
    slope = np.float32(2.0 * attrs["alpha"] * attrs["beta"] / attrs["size"])
    pieces = -(-elements(x) // THREADS)
    return KernelProgram((launch_blocks(function, pieces, pointers(0, 1, 2), *_scalars(request), slope),))


RESPONSE_NORM: Mapping[str, Callable[[OpRequest], KernelProgram]] = MappingProxyType(
    {"lrn": _forward, "lrn_backward": _backward}
)
"""By kind."""
