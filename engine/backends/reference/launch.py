"""From a kernel to something that runs on addresses of the arena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import Launch
from .numpy_kernel import Array, NumpyKernel

UFUNC_BUFFER_ELEMENTS = 384
"""numpy's own buffers while a ufunc casts or broadcasts; small, since they are the one memory that no plan counts."""


def make_launch(
    variant: NumpyKernel, operands: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], repeat: bool, memory: Array
) -> Launch:
    """Something to call with the addresses of the operands, (shape, type) each, and of the workspace."""
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
                run(*arrays)
            finally:
                np.setbufsize(before)

    return launch
