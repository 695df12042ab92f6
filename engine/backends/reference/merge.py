"""Sums, concatenations and changes of shape: nothing but copies and one addition."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from ....layers.graph import TensorSpec
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec


def _add(op: OpSpec) -> tuple[NumpyKernel, ...]:
    def run(a: Array, b: Array, y: Array) -> None:
        np.add(a, b, out=y)

    return (NumpyKernel("whole", run),)


def _ranges(parts: tuple[TensorSpec, ...]) -> tuple[slice, ...]:
    """Find where each part lies along the channels."""
    ends = tuple(accumulate(part.shape[1] for part in parts))
    return tuple(slice(end - part.shape[1], end) for part, end in zip(parts, ends, strict=True))


def _concat(op: OpSpec) -> tuple[NumpyKernel, ...]:
    ranges = _ranges(op.inputs)

    def run(*arrays: Array) -> None:
        *parts, whole = arrays
        for part, channels in zip(parts, ranges, strict=True):
            np.copyto(whole[:, channels], part)

    return (NumpyKernel("copies", run),)


def _split(op: OpSpec) -> tuple[NumpyKernel, ...]:
    ranges = _ranges(op.outputs)

    def run(whole: Array, *parts: Array) -> None:
        for part, channels in zip(parts, ranges, strict=True):
            np.copyto(part, whole[:, channels])

    return (NumpyKernel("copies", run),)


def _reshape(op: OpSpec) -> tuple[NumpyKernel, ...]:
    def run(x: Array, y: Array) -> None:
        # numpy returns at once where both are the same bytes.
        np.copyto(y.reshape(-1), x.reshape(-1))

    return (NumpyKernel("copy", run),)


MERGE: Mapping[str, Implementation] = MappingProxyType(
    {
        "add": _add,
        "concat": _concat,
        "split": _split,
        "flatten": _reshape,
        "reshape": _reshape,
    }
)
