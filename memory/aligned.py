"""Arrays in ordinary memory that begin where libraries want their operands to begin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""A cache line, and the widest register of a processor."""


def allocate_aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return `nbytes` zeros that begin at a multiple of `ALIGNMENT`, which numpy does not promise of its own arrays."""
    buffer = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + nbytes]
