"""A tier in a file on a disk, for tensors that the plan moves out of the arena.

A run has one file. It lies in a folder on a disk, takes all its room at the start and has no name, so that nothing is
left behind (`spill_file.py`). Transfers bypass the page cache where the file system allows it, and are split into
pieces (`file_lane.py`). The bytes are gone with the process: the file is no checkpoint.

A disk tier does not check for races, which `devices/simulated.py` does, nor for bytes that the disk changed by itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ..errors import BudgetError
from ..sizes import format_size_exact
from .file_lane import FileLane
from .spill_file import allocate, create_spill_file, free_bytes, io_error
from .spill_folder import check_spill_folder
from .tier import align_to_tier, check_range


class DiskTier:
    """A `Tier` of `nbytes` in a file without a name.

    Attributes:
        name: what plans and errors call it.
        nbytes: its size; the file has this size rounded up to a multiple of 4096.
        folder: where the file lies.
        direct: whether transfers bypass the page cache (O_DIRECT).
        staging_bytes: the most memory outside the arena that transfers in both directions take at once: bounce buffers
            where `direct`, else page cache.
    """

    def __init__(
        self, folder: Path, nbytes: int, *, limit: int | None = None, name: str = "disk", try_direct: bool = True
    ) -> None:
        """Make the file.

        Args:
            folder: on a disk.
            nbytes: how many bytes the plan needs.
            limit: the most that the user allows, in bytes; None for what the disk has.
            name: what plans and errors call the tier.
            try_direct: use O_DIRECT where the file system has it.

        Raises:
            BudgetError: `nbytes` is more than `limit`, or than the disk has free.
            ConfigError: the folder is missing, cannot be written, or lies in memory.
            DeviceError: the disk failed.
        """
        self.name = name
        self.folder = folder
        self._limit = limit
        self._check(nbytes)
        check_spill_folder(folder)
        self.nbytes = nbytes
        self._file = create_spill_file(folder, nbytes, try_direct=try_direct)
        self.direct = self._file.direct
        self._out = FileLane(self._file, f"{name}-out")
        self._inward = FileLane(self._file, f"{name}-inward")
        self.staging_bytes = self._out.staging_bytes + self._inward.staging_bytes
        self._closed = False

    def _check(self, nbytes: int) -> None:
        where = f"tier {self.name!r} in {self.folder}"
        if nbytes <= 0:
            raise BudgetError(where, "at least one byte", f"{nbytes} bytes")
        if self._limit is not None and align_to_tier(nbytes) > self._limit:
            raise BudgetError(
                where,
                f"at most {format_size_exact(self._limit)} (--spill-size)",
                f"a plan that needs {format_size_exact(align_to_tier(nbytes))}",
                "Give a larger --spill-size, or more memory.",
            )

    def grow(self, nbytes: int) -> None:
        """Enlarge the file until it holds at least `nbytes`; raises as the constructor does."""
        if nbytes > self.nbytes:
            self._check(nbytes)
            try:
                allocate(self._file.descriptor, self._file.where, nbytes, free_bytes(self.folder))
            except OSError as error:
                raise io_error(error, self._file.where, f"{align_to_tier(nbytes)} bytes to be allocated") from error
            self.nbytes = nbytes

    def write(self, address: int, source: npt.NDArray[np.uint8]) -> None:
        """Copy `source` to the bytes from `address`.

        Raises:
            PlanError: the bytes lie outside, `address` is no multiple of 4096, or the tier is closed.
            DeviceError: the disk failed, or took fewer bytes.
        """
        check_range(self, address, source.nbytes)
        self._out.write(address, source)

    def read(self, address: int, target: npt.NDArray[np.uint8]) -> None:
        """Copy the bytes from `address` into `target`; raises as `write` does."""
        check_range(self, address, target.nbytes)
        self._inward.read(address, target)

    def close(self) -> None:
        """Wait for transfers under way, end the threads and give the file's room back; closing twice is allowed."""
        if not self._closed:
            self._closed = True
            # First the lanes: the number of a closed file may at once belong to another one.
            self._out.close()
            self._inward.close()
            os.close(self._file.descriptor)

    def __enter__(self) -> DiskTier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
