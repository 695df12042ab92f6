"""One direction of transfers between memory and a spill file: split into pieces, several of them in flight.

A transfer is cut into pieces of `PIECE_BYTES`, dealt out to `DEPTH` threads, one of which is the caller's; `pwrite` and
`preadv` release the interpreter lock and name their place themselves, so that pieces need no order. A transfer returns
or raises only when none of its pieces is under way any more: whoever gets an error may reuse the memory.

With O_DIRECT the disk reads and writes the given memory itself. What does not lie on a multiple of 4096 in memory, and
a last block that is not full, goes through a bounce buffer of one piece. Without O_DIRECT the bytes pass through the
page cache, which counts against a memory limit: after each `WINDOW_BYTES` they are written out and dropped from it.

Does not check ranges (`disk_tier.py` does). Source: open(2), posix_fadvise(2).
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
from .tier import TIER_ALIGNMENT, padded

PIECE_BYTES = 2**20
"""Below it the calls cost more than the disk (256 KiB: half the bandwidth); above it nothing is gained."""
DEPTH = 4
WINDOW_BYTES = 8 * 2**20
_SHORT = "Other programs may have taken the room, or the disk is failing."

_Mover = Callable[[int, memoryview], None]


class FileLane:
    """Moves bytes between memory and `file`, one transfer at a time.

    Attributes:
        staging_bytes: memory outside the arena that a transfer takes at most: the bounce buffer with O_DIRECT, and
            without it the page cache.
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
                os.posix_fadvise(self._file.descriptor, offset + first, padded(window.nbytes), advice)
            except OSError as error:
                expected = f"{window.nbytes} bytes at {offset + first} to reach the disk"
                raise self._failed(error, expected) from error

    def _in_pieces(self, offset: int, view: memoryview, move: _Mover) -> None:
        """Move `view` in pieces, several at once; raises the first thread's error once none is under way."""
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
        """Write at most a piece by way of the bounce buffer; the rest of its last block keeps its old bytes."""
        assert self._staging is not None
        with memoryview(self._staging) as staging:
            end = padded(view.nbytes)
            if end > view.nbytes:
                self._read_piece(offset + end - TIER_ALIGNMENT, staging[end - TIER_ALIGNMENT : end])
            staging[: view.nbytes] = view
            self._write_piece(offset, staging[:end])

    def _read_staged(self, offset: int, view: memoryview) -> None:
        assert self._staging is not None
        with memoryview(self._staging) as staging:
            self._read_piece(offset, staging[: padded(view.nbytes)])
            view[:] = staging[: view.nbytes]

    def _write_piece(self, offset: int, view: memoryview) -> None:
        done = 0
        while done < view.nbytes:
            expected = f"{view.nbytes - done} bytes to be written at {offset + done}"
            try:
                count = os.pwrite(self._file.descriptor, view[done:], offset + done)
            except OSError as error:
                raise self._failed(error, expected) from error
            done += self._progress(count, view.nbytes - done, expected)

    def _read_piece(self, offset: int, view: memoryview) -> None:
        done = 0
        while done < view.nbytes:
            expected = f"{view.nbytes - done} bytes to be read at {offset + done}"
            try:
                count = os.preadv(self._file.descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise self._failed(error, expected) from error
            done += self._progress(count, view.nbytes - done, expected)

    def _progress(self, count: int, asked: int, expected: str) -> int:
        """Return how far a short transfer has come; with O_DIRECT only whole blocks, from where the next may start."""
        progress = count - count % TIER_ALIGNMENT if self._file.direct and count < asked else count
        if progress <= 0:
            raise DeviceError(self._file.where, expected, f"{count} bytes", _SHORT)
        return progress

    def _failed(self, error: OSError, expected: str) -> DeviceError:
        """Any fault of a file that is open already is the device's: another option would not have helped the run."""
        fault = io_error(error, self._file.where, expected)
        return DeviceError(fault.where, fault.expected, fault.actual, fault.hint)


def _stride(move: _Mover, offset: int, view: memoryview, number: int) -> None:
    """Move the pieces `number`, `number` + DEPTH, … of `view`, one after the other."""
    for first in range(number * PIECE_BYTES, view.nbytes, DEPTH * PIECE_BYTES):
        move(offset + first, view[first : first + PIECE_BYTES])
