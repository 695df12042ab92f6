"""The arena in the memory of a GPU, which is one allocation."""

from __future__ import annotations

from ..errors import BudgetError
from ..region import Region
from ..sizes import format_size_exact
from .runtime import CudaRuntime

RESERVED_BYTES = 768 * 2**20
"""How many of the free bytes are left to the libraries' handles, code and stacks."""


class CudaArena(Region):
    """A `Region` of a GPU's memory; its contents are undefined at first."""

    def __init__(self, runtime: CudaRuntime, nbytes: int, stream: int, name: str = "arena") -> None:
        """Allocate the bytes; raises BudgetError where CUDA refuses, with how many are free."""
        if nbytes <= 0:
            raise BudgetError(name, "at least one byte", f"{nbytes} bytes")
        super().__init__(nbytes, name)
        self._runtime = runtime
        try:
            self.base = runtime.malloc(nbytes)
        except runtime.CUDARuntimeError as error:
            free = runtime.memGetInfo()[0]
            most = max(free - RESERVED_BYTES, 0)
            raise BudgetError(
                name,
                f"{format_size_exact(nbytes)} of the GPU's memory",
                f"{format_size_exact(free)} free ({error})",
                f"Give a budget of at most {format_size_exact(most)}, or end other programs on the GPU.",
            ) from error
        self.stream = stream
        self.committed_bytes = nbytes

    def commit(self, nbytes: int | None = None) -> None:
        """Check the range alone, as all bytes are resident from the start; raises PlanError for more than there are."""
        self.check(0, self.nbytes if nbytes is None else nbytes)

    def poison(self, byte: int, address: int, nbytes: int) -> None:
        """Fill `nbytes` from `address` with `byte` after all queued computation, and wait until that is done."""
        self.fill(byte, address, nbytes)
        self._runtime.streamSynchronize(self.stream)

    def fill(self, byte: int, address: int, nbytes: int) -> None:
        """Queue the filling of `nbytes` from `address` with `byte` in the computing stream."""
        self.check(address, nbytes)
        if nbytes:
            self._runtime.memsetAsync(self.base + address, byte, nbytes, self.stream)

    def close(self) -> None:
        """Give the memory back; closing twice is allowed."""
        if self.base:
            self._runtime.free(self.base)
            self.base = 0

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.base == 0
