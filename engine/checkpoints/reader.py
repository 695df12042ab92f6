"""Reading a checkpoint file: whole and checked, or an error that says what is damaged.

Decides from the file alone, laid out as `format.py` describes. Every length is checked against the bytes that
are there before anything is allocated, and every digest before anything is believed. Does not check that the arrays fit
a network.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...memory.aligned import allocate_aligned
from ...memory.errors import CheckpointError
from .format import ARRAY, DIGEST, END, KINDS, MAGIC, PREAMBLE, RECORD, TAIL, VERSION, make_digest

_LARGEST_DESCRIPTION = 2**20
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """An array in a checkpoint file: what it is, where its bytes begin, and their digest."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    offset: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint file whose structure has been read; the arrays are read when asked for, and checked again.

    Attributes:
        path: the file.
        step: the number of training steps done.
        header: what the trainer stored beside the arrays.
        entries: the arrays by name, in the order of the file.
    """

    path: Path
    step: int
    header: dict[str, Any]
    entries: Mapping[str, ArrayEntry]

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield each name and array, one in memory at a time.

        Raises:
            CheckpointError: the file is damaged, or gone.
        """
        for name, entry in self.entries.items():
            array = np.empty(entry.shape, dtype=entry.dtype)
            self.read_into(name, array)
            yield name, array

    def read_into(self, name: str, target: npt.NDArray[Any]) -> None:
        """Read an array into `target`, C-contiguous and of the same shape and dtype; after an error it holds anything.

        Raises:
            CheckpointError: no such array, a target that does not fit, or a damaged file.
        """
        entry = self._entry(name)
        where = f"{self.path}, array {name!r}"
        if target.shape != entry.shape or target.dtype != np.dtype(entry.dtype):
            came, stored = f"{target.dtype} {target.shape}", f"{np.dtype(entry.dtype)} {entry.shape}"
            raise CheckpointError(where, f"{came}, as the target has it", f"{stored} in the file")
        if not (target.flags.c_contiguous and target.flags.writeable):
            raise CheckpointError(where, "a C-contiguous, writable target", "another one")
        with _open_file(self.path) as file:
            reader = _Reader(file, self.path, entry.offset)
            view = target.reshape(-1).view(np.uint8).data
            reader.fill(view, where)
            if make_digest(view).digest() != entry.digest:
                raise make_damage_error(self.path, f"the stored digest of array {name!r}", "another one")

    def pieces(self, name: str, rows: Sequence[int]) -> Iterator[npt.NDArray[Any]]:
        """Yield an array in consecutive pieces of so many rows; its digest is checked after the last one.

        Raises:
            CheckpointError: no such array, one of another number of rows, or a damaged file.
        """
        entry = self._entry(name)
        where = f"{self.path}, array {name!r}"
        if entry.shape[:1] != (sum(rows),):
            raise CheckpointError(where, f"{sum(rows)} rows", f"shape {entry.shape} in the file")
        with _open_file(self.path) as file:
            reader = _Reader(file, self.path, entry.offset)
            digest = make_digest()
            for count in rows:
                wanted = (count, *entry.shape[1:])
                content = allocate_aligned(math.prod(wanted) * np.dtype(entry.dtype).itemsize)
                piece, view = content.view(entry.dtype).reshape(wanted), content.data
                reader.fill(view, where)
                digest.update(view)
                yield piece
        if digest.digest() != entry.digest:
            raise make_damage_error(self.path, f"the stored digest of array {name!r}", "another one")

    def _entry(self, name: str) -> ArrayEntry:
        if name not in self.entries:
            raise CheckpointError(str(self.path), f"an array {name!r}", f"{len(self.entries)} others")
        return self.entries[name]


def make_damage_error(path: Path, expected: str, actual: str) -> CheckpointError:
    """Return the error for a file that is not whole."""
    return CheckpointError(str(path), expected, actual, "The file is damaged: use an earlier checkpoint.")


def read_checkpoint(path: Path, verify: bool = True) -> Checkpoint:
    """Return the checkpoint at `path`, having read and checked every byte of it.

    Args:
        path: the file.
        verify: read the arrays too and check their digests; else that waits until they are read.

    Raises:
        CheckpointError: missing, unreadable, of a newer version, or damaged: says where.
    """
    with _open_file(path) as file:
        reader = _Reader(file, path, 0)
        _, version, header_nbytes = PREAMBLE.unpack(_read_preamble(reader))
        if version != VERSION:
            hint = "It was written by a newer Bathyal: upgrade."
            raise CheckpointError(str(path), f"version {VERSION}", f"version {version}", hint)
        stored = reader.part(header_nbytes, "the header")
        fields = _parse(path, stored, {"step": int, "header": dict}, "the header")
        entries: dict[str, ArrayEntry] = {}
        while (entry := _read_record(reader, len(entries), verify)) is not None:
            if entry.name in entries:
                raise make_damage_error(path, "each array once", f"{entry.name!r} twice")
            entries[entry.name] = entry
        return Checkpoint(path, fields["step"], fields["header"], entries)


class _Reader:
    """Reads forward through an open file; every request is checked against the bytes left."""

    __slots__ = ("_file", "chain", "path", "position", "size")

    def __init__(self, file: FileIO, path: Path, position: int) -> None:
        self._file = file
        self.path = path
        self.position = position
        self.size = os.fstat(file.fileno()).st_size
        self.chain = make_digest()
        file.seek(position)

    def require(self, nbytes: int, what: str) -> None:
        left = self.size - self.position
        if nbytes > left:
            raise make_damage_error(
                self.path, f"{nbytes} bytes of {what} at byte {self.position}", f"{left} to the end"
            )

    def fill(self, view: memoryview, what: str) -> None:
        self.require(len(view), what)
        filled = 0
        while filled < len(view):
            try:
                count = self._file.readinto(view[filled : filled + 2**30])
            except OSError as error:
                raise CheckpointError(str(self.path), f"to read {what}", error.strerror or str(error)) from error
            if not count:
                raise make_damage_error(self.path, f"{len(view)} bytes of {what}", f"{filled}")
            filled += count
        self.position += filled

    def take(self, nbytes: int, what: str) -> bytes:
        self.require(nbytes, what)
        data = bytearray(nbytes)
        self.fill(memoryview(data), what)
        return bytes(data)

    def pieces(self, nbytes: int, what: str, piece: int = _CHUNK) -> Iterator[bytes]:
        self.require(nbytes, what)
        for start in range(0, nbytes, piece):
            yield self.take(min(piece, nbytes - start), what)

    def skip(self, nbytes: int, what: str) -> None:
        self.require(nbytes, what)
        self.position = self._file.seek(self.position + nbytes)

    def check(self, digest: bytes, what: str) -> None:
        stored = self.take(DIGEST, f"the digest of {what}")
        self.chain.update(stored)
        if stored != digest:
            raise make_damage_error(self.path, f"the stored digest of {what}", "another one")

    def part(self, nbytes: int, what: str, before: bytes = b"") -> bytes:
        data = before + self.take(nbytes, what)
        self.check(make_digest(data).digest(), what)
        return data


@contextmanager
def _open_file(path: Path) -> Iterator[FileIO]:
    try:
        # A pipe of that name would block an open that waits for its other end.
        file = FileIO(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "r")
    except OSError as error:
        raise CheckpointError(str(path), "a file to read", error.strerror or str(error)) from error
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise CheckpointError(str(path), "a file", "something else")
        yield file


def _read_preamble(reader: _Reader) -> bytes:
    if reader.size == 0:
        raise make_damage_error(reader.path, "a checkpoint", "an empty file")
    preamble = reader.take(PREAMBLE.size, "the preamble")
    if not preamble.startswith(MAGIC):
        raise make_damage_error(reader.path, f"a Bathyal checkpoint, which begins with {MAGIC!r}", f"{preamble[:8]!r}")
    return reader.part(0, "the preamble", preamble)


def _read_record(reader: _Reader, index: int, verify: bool) -> ArrayEntry | None:
    """Read the record of array `index`; None at the end of the file, once that has been checked."""
    what = f"array record {index}"
    start = reader.take(RECORD.size, what)
    marker, length = RECORD.unpack(start)
    if marker == END:
        _read_end(reader, start, index)
        return None
    if marker != ARRAY or length > _LARGEST_DESCRIPTION:
        raise make_damage_error(
            reader.path, f"an array or the end at byte {reader.position - RECORD.size}", f"{start!r}"
        )
    description = reader.part(length, what, start)[RECORD.size :]
    fields = _parse(reader.path, description, {"name": str, "shape": list, "dtype": str, "nbytes": int}, what)
    name, shape, dtype, nbytes = (fields[key] for key in ("name", "shape", "dtype", "nbytes"))
    if _count_bytes(shape, dtype) != nbytes:
        raise make_damage_error(reader.path, f"{what} to hold {dtype} {shape}", f"{nbytes} bytes")
    offset = reader.position
    stored_as = f"array {name!r}"
    if verify:
        digest = make_digest()
        for piece in reader.pieces(nbytes, stored_as):
            digest.update(piece)
        found = digest.digest()
        reader.check(found, stored_as)
    else:
        reader.skip(nbytes, stored_as)
        found = reader.take(DIGEST, f"the digest of {stored_as}")
        reader.chain.update(found)
    return ArrayEntry(name, tuple(shape), dtype, nbytes, offset, found)


def _read_end(reader: _Reader, start: bytes, arrays: int) -> None:
    tail = start + reader.take(TAIL.size - len(start), "the end")
    reader.chain.update(tail)
    digest = reader.chain.digest()
    reader.check(digest, "the whole file")
    _, count, nbytes = TAIL.unpack(tail)
    if (count, nbytes) != (arrays, reader.position):
        raise make_damage_error(reader.path, f"{count} arrays in {nbytes} bytes", f"{arrays} in {reader.position}")
    if reader.position != reader.size:
        raise make_damage_error(reader.path, f"{nbytes} bytes", f"{reader.size}")


def _parse(path: Path, data: bytes, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise make_damage_error(path, f"JSON in {what}", str(error)) from error
    if not isinstance(fields, dict) or any(not isinstance(fields.get(key), kind) for key, kind in kinds.items()):
        raise make_damage_error(path, f"{', '.join(kinds)} in {what}", "other fields")
    return fields


def _count_bytes(shape: list[Any], dtype: str) -> int | None:
    """Return the bytes of an array; None where shape or dtype make no sense."""
    if any(type(size) is not int or size < 0 for size in shape):
        return None
    try:
        parsed = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return None
    return math.prod(shape) * parsed.itemsize if parsed.kind in KINDS else None
