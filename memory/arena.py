"""The one block of memory that holds every tensor of a training step, and views into it.

The arena decides nothing: addresses come from a plan or from `HeapPool`. That two views are disjoint is checked by the
plan's verifier and by the simulated device.

The system is advised to use huge pages for all of it, where it has them. A mapping alone refuses nothing: Linux
promises more memory than it has and kills processes later. `commit` therefore touches the pages in slices and looks at
the free memory before each.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from types import TracebackType

import numpy as np
import numpy.typing as npt

from .errors import BudgetError, DeviceError
from .process.available import free_memory
from .region import Region
from .sizes import format_size_exact

PAGE_BYTES = 4096
_SLICE_BYTES = 64 * 2**20


class Arena(Region):
    """A `Region` of the host's memory, private to this process, zero at first, starting on a page.

    Attributes:
        memory: all bytes, as uint8 of shape `(nbytes,)`; empty once the arena is closed. Whoever makes views of it
            without `view` calls `claim` once for each.
    """

    def __init__(self, nbytes: int, name: str = "arena") -> None:
        """Map `nbytes`; raises BudgetError where the system refuses (`ulimit -v`, strict overcommit)."""
        if nbytes <= 0:
            raise BudgetError(name, "at least one byte", f"{nbytes} bytes")
        super().__init__(nbytes, name)
        try:
            self._mapping = _map(nbytes)
        except (OSError, OverflowError, ValueError) as error:
            raise BudgetError(
                name,
                f"{format_size_exact(nbytes)} of address space",
                f"a refusal by the system: {error}",
                "Give a smaller budget, or raise the limit (ulimit -v, vm.overcommit_memory).",
            ) from error
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, dtype=np.uint8, count=nbytes)
        self.base = int(self.memory.ctypes.data)
        assert self.base % PAGE_BYTES == 0, f"mapping starts at {self.base:#x}, not on a page"

    def view(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the `nbytes` from `address` as uint8, not copied, and claim them; raises PlanError outside."""
        self.claim(address, nbytes)
        return self.memory[address : address + nbytes]

    def commit(self, nbytes: int | None = None, free: Callable[[], int] = free_memory) -> None:
        """Make the first `nbytes` (all by default) resident now, keeping their contents.

        After a refusal the pages touched so far stay; `close` gives them back.

        Args:
            nbytes: how many bytes; those that an earlier call has touched cost nothing.
            free: tells the bytes still free; asked before the first and then before each slice of 64 MiB.

        Raises:
            BudgetError: fewer bytes are free than are asked for.
            PlanError: more bytes than the arena has.
        """
        end = self.nbytes if nbytes is None else nbytes
        self.check(0, end)
        if self.committed_bytes >= end:
            return
        self._refuse_beyond(end, end - self.committed_bytes, free())
        while self.committed_bytes < end:
            first = self.committed_bytes
            last = min(end, first + _SLICE_BYTES)
            self._refuse_beyond(end, last - first, free())
            # One write a page makes it resident; `|= 0` writes without changing anything.
            pages = self.memory[first:last:PAGE_BYTES]
            pages |= 0
            self.memory[last - 1 : last] |= 0  # the last page, where an earlier commit ended inside a page
            self.committed_bytes = last

    def poison(self, byte: int, address: int, nbytes: int) -> None:
        """Fill `nbytes` from `address` with `byte`, so that a read of dead bytes shows; the high-water mark stays."""
        self.check(address, nbytes)
        self.memory[address : address + nbytes] = byte

    def close(self) -> None:
        """Give all pages back; views that still live then read zeros. Closing twice is allowed."""
        if not self.closed:
            self.memory = np.empty(0, dtype=np.uint8)
            if hasattr(mmap, "MADV_DONTNEED"):
                self._mapping.madvise(mmap.MADV_DONTNEED)
            with contextlib.suppress(BufferError):  # a view still lives: the mapping goes with the last one
                self._mapping.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.memory.size == 0

    def _refuse_beyond(self, asked: int, needed: int, free: int) -> None:
        if needed > free:
            touched = f", with {format_size_exact(self.committed_bytes)} touched" if self.committed_bytes else ""
            raise BudgetError(
                self.name,
                f"{format_size_exact(needed)} of free memory for {format_size_exact(asked)} in all",
                f"{format_size_exact(free)} free{touched}",
                "Give a smaller budget, end other programs, or raise the cgroup's limit.",
            )

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _map(nbytes: int) -> mmap.mmap:
    if hasattr(mmap, "MAP_ANONYMOUS"):
        mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        mapping = mmap.mmap(-1, nbytes)
    # At once: what is touched before the advice stays in small pages, and a step is a fifth slower for it.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # EINVAL: a kernel built without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def host_memory(region: Region) -> npt.NDArray[np.uint8]:
    """Return all bytes of an arena that lies in the host's memory, as uint8.

    Raises:
        DeviceError: it lies elsewhere.
    """
    if not isinstance(region, Arena):
        raise DeviceError(region.name, "an arena in the host's memory", type(region).__name__)
    return region.memory
