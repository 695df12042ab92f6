"""Transfers between memory and a spill file in one direction, split into pieces of which several are under way at once.

A transfer is cut into pieces of `PIECE_BYTES`, which `DEPTH` threads share, one of them the caller's. `pwrite` and
`preadv` release the interpreter lock, and each call names its place in the file, so that pieces need no order. A
transfer returns or raises only when none of its pieces is under way any more: whoever gets an error may reuse the
memory.

With O_DIRECT the disk reads and writes the given memory itself. What does not lie on a multiple of 4096 in memory, and
a last block that is not full, goes through a bounce buffer of one piece. Without O_DIRECT the bytes pass through the
page cache, which counts against a memory limit: after each `WINDOW_BYTES` they are written out and dropped from it.

A lane does not check ranges; `disk.py` does. Source: open(2), posix_fadvise(2).
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError, PlanError
from .spill_file import SpillFile, io_error
from .tier import TIER_ALIGNMENT, align_to_tier

PIECE_BYTES = 2**20
"""Smaller pieces cost more in calls than in the disk (256 KiB: half the bandwidth); larger ones gain nothing."""
DEPTH = 4
"""How many pieces of a transfer are under way at once."""
WINDOW_BYTES = 8 * 2**20
"""How many bytes a transfer leaves in the page cache, where there is no O_DIRECT, before it drops them."""
_SHORT = "Other programs may have taken the room, or the disk is failing."

_Mover = Callable[[int, memoryview], None]


class FileLane:
    """One direction of a spill file, which runs one transfer at a time.

    Attributes:
        staging_bytes: the most memory outside the arena that a transfer takes: the bounce buffer with O_DIRECT, else
            page cache.
    """

    def __init__(self, file: SpillFile, name: str) -> None:
        """Store the file, which the caller closes after this; `name` is for threads and errors."""
        self.staging_bytes = PIECE_BYTES if file.direct else WINDOW_BYTES
        self._file = file
        self._name = name
        self._busy = threading.Lock()
        self._closed = False
        self._pool = ThreadPoolExecutor(DEPTH - 1, thread_name_prefix=f"bathyal-{name}")
        self._staging = mmap.mmap(-1, PIECE_BYTES) if file.direct else None

    def write(self, offset: int, source: npt.NDArray[np.uint8]) -> None:
        """Copy `source` to the file from `offset`, a multiple of 4096.

        Raises:
            DeviceError: the system refuses, or moves nothing.
            PlanError: the lane is closed.
        """
        with self._busy:
            self._check_open()
            if self._staging is not None:
                self._move_direct(offset, source, self._write_piece, self._write_staged)
            else:
                self._move_cached(offset, source, self._write_piece, written=True)

    def read(self, offset: int, target: npt.NDArray[np.uint8]) -> None:
        """Copy the file's bytes from `offset`, a multiple of 4096, into `target`; raises as `write` does."""
        with self._busy:
            self._check_open()
            if self._staging is not None:
                self._move_direct(offset, target, self._read_piece, self._read_staged)
            else:
                self._move_cached(offset, target, self._read_piece, written=False)

    def close(self) -> None:
        """Wait for the transfer under way and end the threads; closing twice is allowed."""
        with self._busy:
            self._closed = True
            self._pool.shutdown()
            if self._staging is not None and not self._staging.closed:
                self._staging.close()

    def _check_open(self) -> None:
        if self._closed:
            raise PlanError(self._file.where, "an open tier", "a closed one")

    def _move_direct(self, offset: int, array: npt.NDArray[np.uint8], move: _Mover, move_staged: _Mover) -> None:
        aligned = array.__array_interface__["data"][0] % TIER_ALIGNMENT == 0
        whole = array.nbytes - array.nbytes % TIER_ALIGNMENT if aligned else 0
        view = array.data
        self._in_pieces(offset, view[:whole], move)
        for first in range(whole, array.nbytes, PIECE_BYTES):
            move_staged(offset + first, view[first : first + PIECE_BYTES])

    def _move_cached(self, offset: int, array: npt.NDArray[np.uint8], move: _Mover, *, written: bool) -> None:
        view = array.data
        for first in range(0, array.nbytes, WINDOW_BYTES):
            window = view[first : first + WINDOW_BYTES]
            try:
                self._in_pieces(offset + first, window, move)
                if written:
                    os.fdatasync(self._file.descriptor)  # only what is on the disk can be dropped
                # Whole pages: the kernel keeps one that is dropped in part.
                advice = os.POSIX_FADV_DONTNEED
                os.posix_fadvise(self._file.descriptor, offset + first, align_to_tier(window.nbytes), advice)
            except OSError as error:
                expected = f"{window.nbytes} bytes at {offset + first} to reach the disk"
                raise self._as_device_error(error, expected) from error

    def _in_pieces(self, offset: int, view: memoryview, move: _Mover) -> None:
        """Move `view` in pieces, several at once; raise the first thread's error once no piece is under way."""
        others: list[Future[None]] = []
        try:
            for number in range(1, min(DEPTH, -(-view.nbytes // PIECE_BYTES))):
                others.append(self._pool.submit(_stride, move, offset, view, number))
            _stride(move, offset, view, 0)
        finally:
            wait(others)
        for future in others:
            future.result()

    def _write_staged(self, offset: int, view: memoryview) -> None:
        """Write at most one piece through the bounce buffer; the rest of the last block keeps the file's bytes."""
        assert self._staging is not None
        with memoryview(self._staging) as staging:
            end = align_to_tier(view.nbytes)
            if end > view.nbytes:
                self._read_piece(offset + end - TIER_ALIGNMENT, staging[end - TIER_ALIGNMENT : end])
            staging[: view.nbytes] = view
            self._write_piece(offset, staging[:end])

    def _read_staged(self, offset: int, view: memoryview) -> None:
        assert self._staging is not None
        with memoryview(self._staging) as staging:
            self._read_piece(offset, staging[: align_to_tier(view.nbytes)])
            view[:] = staging[: view.nbytes]

    def _write_piece(self, offset: int, view: memoryview) -> None:
        done = 0
        while done < view.nbytes:
            expected = f"{view.nbytes - done} bytes to be written at {offset + done}"
            try:
                count = os.pwrite(self._file.descriptor, view[done:], offset + done)
            except OSError as error:
                raise self._as_device_error(error, expected) from error
            done += self._progress(count, view.nbytes - done, expected)

    def _read_piece(self, offset: int, view: memoryview) -> None:
        done = 0
        while done < view.nbytes:
            expected = f"{view.nbytes - done} bytes to be read at {offset + done}"
            try:
                count = os.preadv(self._file.descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise self._as_device_error(error, expected) from error
            done += self._progress(count, view.nbytes - done, expected)

    def _progress(self, count: int, asked: int, expected: str) -> int:
        """Return how many of `count` moved bytes are done: with O_DIRECT only whole blocks, where a call can start."""
        progress = count - count % TIER_ALIGNMENT if self._file.direct and count < asked else count
        if progress <= 0:
            raise DeviceError(self._file.where, expected, f"{count} bytes", _SHORT)
        return progress

    def _as_device_error(self, error: OSError, expected: str) -> DeviceError:
        """Return the error to raise: a fault of an open file is the device's, as no other option would have helped."""
        fault = io_error(error, self._file.where, expected)
        return DeviceError(fault.where, fault.expected, fault.actual, fault.hint)


def _stride(move: _Mover, offset: int, view: memoryview, number: int) -> None:
    """Move the pieces `number`, `number` + DEPTH, … of `view`, one after the other."""
    for first in range(number * PIECE_BYTES, view.nbytes, DEPTH * PIECE_BYTES):
        move(offset + first, view[first : first + PIECE_BYTES])
