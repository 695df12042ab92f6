"""Numbers of 16 bits with float32's exponent, on the host: numpy has no such type, so they are held as uint16."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 numbers to the nearest bfloat16, ties to even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    halves: npt.NDArray[np.uint16] = np.where(np.isnan(values), quiet, rounded >> np.uint32(16)).astype(np.uint16)
    return halves


def from_bfloat16(halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the same numbers in float32."""
    values: npt.NDArray[np.float32] = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values
