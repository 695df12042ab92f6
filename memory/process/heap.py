"""The heap of this process, whose freed blocks the C library may keep for itself."""

from __future__ import annotations

import ctypes


def return_free_heap() -> None:
    """Give blocks that were freed back to the system, where the C library can (glibc); else do nothing.

    glibc keeps the top of its heap up to twice the largest block that was ever freed, 64 MiB: after tens of MiB passed
    through ordinary memory once, as plans and first values do, they would count as used to the end.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
