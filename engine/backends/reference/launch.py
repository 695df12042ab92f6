"""From a kernel to something that runs on addresses of the arena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....memory.errors import DeviceError
from ..backend import Launch
from .numpy_kernel import Array, NumpyKernel

UFUNC_BUFFER_ELEMENTS = 384
"""numpy's own buffers while a ufunc casts or broadcasts; small, since they are the one memory that no plan counts."""


def make_launch(
    variant: NumpyKernel, operands: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], repeat: bool, memory: Array
) -> Launch:
    """Make something to call with the addresses of the operands, (shape, type) each, and of the workspace."""
    run = variant.repeat if repeat and variant.repeat is not None else variant.run
    scratch = [
        (offset, spec.shape, np.dtype(spec.dtype))
        for offset, spec in zip(variant.offsets, variant.scratch, strict=True)
    ]
    array = np.ndarray

    def launch(addresses: Sequence[int]) -> None:
        workspace = addresses[-1]
        arrays = [array(s, dtype, memory, address) for (s, dtype), address in zip(operands, addresses, strict=False)]
        arrays += [array(s, dtype, memory, workspace + offset) for offset, s, dtype in scratch]
        # A network that diverges is seen in its loss; numpy's warnings would only come in the middle of a step.
        with np.errstate(all="ignore"):
            before = np.setbufsize(UFUNC_BUFFER_ELEMENTS)
            try:
                returned = run(*arrays)
            finally:
                np.setbufsize(before)
        # `out=` of numpy gives back what it was given, an operand or a view of one; any other result has gone nowhere.
        if returned is not None and not _is_of(returned, arrays):
            found, hint = f"one that returned a {type(returned).__name__}", "Write into the outputs, by numpy's out=."
            raise DeviceError(f"kernel {variant.name!r}", "a function that writes its outputs", found, hint)

    return launch


def _is_of(returned: object, operands: Sequence[Array]) -> bool:
    return isinstance(returned, np.ndarray) and any(np.may_share_memory(returned, operand) for operand in operands)
