"""Pinned memory of the host as a tier of a GPU, whose copy engines read and write it without the processor's help.

A CUDA device copies between its arena and the pinned bytes in its own streams (`device.py`), and notes here what it
moved. `write` and `read` copy at once, for callers that hold the bytes in ordinary memory. Pinned memory can never be
paged out, so it is taken whole and once, and refused where it is more than what is free.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ..errors import BudgetError, PlanError
from ..process.available import free_memory
from ..sizes import format_size_exact
from ..tiers.tier import check_range
from ..tiers.timed import Traffic
from .runtime import CudaRuntime


class PinnedTier:
    """A `Tier` of `nbytes` of pinned memory.

    Attributes:
        name: what plans and errors call it.
        nbytes: its size.
    """

    def __init__(self, runtime: CudaRuntime, nbytes: int, free: Callable[[], int] = free_memory) -> None:
        """Take the memory.

        Args:
            runtime: the CUDA runtime that allocates it.
            nbytes: how many bytes.
            free: returns how many bytes are still free.

        Raises:
            BudgetError: fewer bytes are free, or the system refuses.
        """
        self.name = "pinned memory"
        self.nbytes = nbytes
        self._runtime = runtime
        self._free = free
        self._pointer = self._allocate(nbytes)
        self._out_bytes = self._in_bytes = 0

    def _allocate(self, nbytes: int) -> int:
        free = self._free()
        if nbytes > free:
            raise BudgetError(
                self.name,
                f"{format_size_exact(nbytes)} of free memory for what leaves the GPU",
                f"{format_size_exact(free)} free",
                "Give --spill-size, or a larger budget, which moves less.",
            )
        try:
            return int(self._runtime.hostAlloc(nbytes, self._runtime.hostAllocDefault))
        except self._runtime.CUDARuntimeError as error:
            raise BudgetError(
                self.name,
                f"{format_size_exact(nbytes)} that can be pinned",
                str(error),
                "Raise the limit on locked memory (ulimit -l), or give --spill-size.",
            ) from error

    def pointer(self, address: int, nbytes: int) -> int:
        """Return the machine address of the bytes from `address`; raises PlanError outside the tier, or once closed."""
        check_range(self, address, nbytes)
        if not self._pointer:
            raise PlanError(f"tier {self.name!r}", "an open tier", "a closed one")
        return self._pointer + address

    @property
    def traffic(self) -> Traffic:
        """What a device has moved so far; its seconds are 0, because only the streams know them."""
        return Traffic(self._out_bytes, self._in_bytes)

    def note(self, out_bytes: int = 0, in_bytes: int = 0) -> None:
        """Count bytes that a device has moved between its arena and this tier."""
        self._out_bytes += out_bytes
        self._in_bytes += in_bytes

    def write(self, address: int, source: npt.NDArray[np.uint8]) -> None:
        """Copy `source` to the bytes from `address`; raises PlanError outside the tier, or once closed."""
        np.copyto(self._view(address, source.nbytes), source)

    def read(self, address: int, target: npt.NDArray[np.uint8]) -> None:
        """Copy the bytes from `address` into `target`; raises PlanError outside the tier, or once closed."""
        np.copyto(target, self._view(address, target.nbytes))

    def _view(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        pointer = self.pointer(address, nbytes)
        if not nbytes:
            return np.empty(0, np.uint8)
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))

    def grow(self, nbytes: int) -> None:
        """Hold at least `nbytes`; raises BudgetError where old and new do not fit beside each other."""
        if nbytes > self.nbytes:
            larger = self._allocate(nbytes)
            ctypes.memmove(larger, self._pointer, self.nbytes)
            self._runtime.freeHost(self._pointer)
            self._pointer, self.nbytes = larger, nbytes

    def close(self) -> None:
        """Give the memory back once all transfers have ended. Closing twice is allowed."""
        if self._pointer:
            self._runtime.freeHost(self._pointer)
            self._pointer = 0

    def __enter__(self) -> PinnedTier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
