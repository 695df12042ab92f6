"""The bytes of a checkpoint file: written and read as a stream, and no damaged byte goes unnoticed.

A file is: a preamble (magic, version, length of the header), the header in JSON, a record for each array (marker,
length, description in JSON, then the data), and an end (marker, number of arrays, length of the file). Each of these
parts is followed by its BLAKE2b-256 digest; the digest at the end is over all digests before it too, so that parts
cannot be left out, repeated or mixed between files. Integers are little-endian. The preamble stays as it is in all
versions. Every length is checked against the bytes that are there before anything is allocated.

Does not decide where the file lies or when it is durable (`checkpoint.py` does), nor whether it fits the network.
BLAKE2: RFC 7693. It detects damage; it does not prove who wrote the file.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..memory.errors import CheckpointError

VERSION = 1

Chunk: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[Any]"
ArraySource: TypeAlias = "tuple[str, tuple[int, ...], npt.DTypeLike, Iterable[Chunk]]"
"""Name, shape, dtype, and the C-ordered bytes in pieces, which are drawn one after another."""

_MAGIC = b"BATHYAL\n"
_PREAMBLE = struct.Struct("<8sIQ")
_ARRAY, _END = b"ARR\n", b"END\n"
_RECORD = struct.Struct("<4sI")
_TAIL = struct.Struct("<4sQQ")
_DIGEST = 32
_LARGEST_DESCRIPTION = 2**20
_CHUNK = 2**20
_KINDS = "biufc"


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
        with _opened(self.path) as file:
            reader = _Reader(file, self.path, entry.offset)
            view = memoryview(target.reshape(-1).view(np.uint8))
            reader.fill(view, where)
            if blake2b(view, digest_size=_DIGEST).digest() != entry.digest:
                raise damaged(self.path, f"the stored digest of array {name!r}", "another one")

    def chunks(self, name: str, nbytes: int = _CHUNK) -> Iterator[bytes]:
        """Yield the bytes of an array in pieces of at most `nbytes`; their digest is checked after the last one.

        Raises:
            CheckpointError: no such array, or a damaged file.
        """
        entry = self._entry(name)
        with _opened(self.path) as file:
            reader = _Reader(file, self.path, entry.offset)
            digest = blake2b(digest_size=_DIGEST)
            for piece in reader.pieces(entry.nbytes, f"array {name!r}", nbytes):
                digest.update(piece)
                yield piece
        if digest.digest() != entry.digest:
            raise damaged(self.path, f"the stored digest of array {name!r}", "another one")

    def _entry(self, name: str) -> ArrayEntry:
        if name not in self.entries:
            raise CheckpointError(str(self.path), f"an array {name!r}", f"{len(self.entries)} others")
        return self.entries[name]


def damaged(path: Path, expected: str, actual: str) -> CheckpointError:
    """Return the error for a file that is not whole."""
    return CheckpointError(str(path), expected, actual, "The file is damaged: use an earlier checkpoint.")


def write(
    output: Callable[[memoryview], None],
    where: str,
    step: int,
    header: Mapping[str, Any],
    arrays: Iterable[ArraySource],
) -> None:
    """Write a checkpoint through `output`, drawing the arrays and their pieces one by one.

    Raises:
        CheckpointError: a header that is not JSON, a name given twice, a dtype that is not numeric, or pieces that are
            more or fewer bytes than the shape says.
    """
    writer = _Writer(output)
    stored = _header_json(where, step, header)
    writer.part(_PREAMBLE.pack(_MAGIC, VERSION, len(stored)))
    writer.part(stored)
    names: set[str] = set()
    for name, shape, dtype, pieces in arrays:
        if name in names:
            raise CheckpointError(where, "each array once", f"{name!r} twice")
        names.add(name)
        description, nbytes = _describe(where, name, shape, dtype)
        writer.part(_RECORD.pack(_ARRAY, len(description)) + description)
        _write_data(writer, f"{where}, array {name!r}", nbytes, pieces)
    writer.end(len(names))


def array_record_nbytes(where: str, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Return the bytes that an array takes in a file.

    Raises:
        CheckpointError: a dtype that is not numeric.
    """
    description, nbytes = _describe(where, name, shape, dtype)
    return _RECORD.size + len(description) + _DIGEST + nbytes + _DIGEST


def frame_nbytes(where: str, step: int, header: Mapping[str, Any]) -> int:
    """Return the bytes of a file without arrays.

    Raises:
        CheckpointError: a header that is not JSON.
    """
    return _PREAMBLE.size + len(_header_json(where, step, header)) + _TAIL.size + 3 * _DIGEST


def load(path: Path, verify: bool = True) -> Checkpoint:
    """Return the checkpoint at `path`, having read and checked every byte of it.

    Args:
        path: the file.
        verify: read the arrays too and check their digests; else that waits until they are read.

    Raises:
        CheckpointError: missing, unreadable, of a newer version, or damaged: says where.
    """
    with _opened(path) as file:
        reader = _Reader(file, path, 0)
        _, version, header_nbytes = _PREAMBLE.unpack(_read_preamble(reader))
        if version != VERSION:
            hint = "It was written by a newer Bathyal: upgrade."
            raise CheckpointError(str(path), f"version {VERSION}", f"version {version}", hint)
        stored = reader.part(header_nbytes, "the header")
        fields = _parse(path, stored, {"step": int, "header": dict}, "the header")
        entries: dict[str, ArrayEntry] = {}
        while (entry := _read_record(reader, len(entries), verify)) is not None:
            if entry.name in entries:
                raise damaged(path, "each array once", f"{entry.name!r} twice")
            entries[entry.name] = entry
        return Checkpoint(path, fields["step"], fields["header"], entries)


class _Writer:
    """Puts a digest after each part and chains them."""

    __slots__ = ("_chain", "_nbytes", "_output")

    def __init__(self, output: Callable[[memoryview], None]) -> None:
        self._output = output
        self._chain = blake2b(digest_size=_DIGEST)
        self._nbytes = 0

    def put(self, data: bytes | memoryview) -> None:
        self._output(memoryview(data))
        self._nbytes += len(data)

    def seal(self, digest: bytes) -> None:
        self._chain.update(digest)
        self.put(digest)

    def part(self, data: bytes) -> None:
        self.put(data)
        self.seal(blake2b(data, digest_size=_DIGEST).digest())

    def end(self, arrays: int) -> None:
        tail = _TAIL.pack(_END, arrays, self._nbytes + _TAIL.size + _DIGEST)
        self.put(tail)
        self._chain.update(tail)
        self.put(self._chain.digest())


class _Reader:
    """Reads forward through an open file; every request is checked against the bytes left."""

    __slots__ = ("_file", "chain", "path", "position", "size")

    def __init__(self, file: FileIO, path: Path, position: int) -> None:
        self._file = file
        self.path = path
        self.position = position
        self.size = os.fstat(file.fileno()).st_size
        self.chain = blake2b(digest_size=_DIGEST)
        file.seek(position)

    def require(self, nbytes: int, what: str) -> None:
        left = self.size - self.position
        if nbytes > left:
            raise damaged(self.path, f"{nbytes} bytes of {what} at byte {self.position}", f"{left} to the end")

    def fill(self, view: memoryview, what: str) -> None:
        self.require(len(view), what)
        filled = 0
        while filled < len(view):
            try:
                count = self._file.readinto(view[filled : filled + 2**30])
            except OSError as error:
                raise CheckpointError(str(self.path), f"to read {what}", error.strerror or str(error)) from error
            if not count:
                raise damaged(self.path, f"{len(view)} bytes of {what}", f"{filled}")
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
        stored = self.take(_DIGEST, f"the digest of {what}")
        self.chain.update(stored)
        if stored != digest:
            raise damaged(self.path, f"the stored digest of {what}", "another one")

    def part(self, nbytes: int, what: str, before: bytes = b"") -> bytes:
        data = before + self.take(nbytes, what)
        self.check(blake2b(data, digest_size=_DIGEST).digest(), what)
        return data


@contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
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
        raise damaged(reader.path, "a checkpoint", "an empty file")
    preamble = reader.take(_PREAMBLE.size, "the preamble")
    if not preamble.startswith(_MAGIC):
        raise damaged(reader.path, f"a Bathyal checkpoint, which begins with {_MAGIC!r}", f"{preamble[:8]!r}")
    return reader.part(0, "the preamble", preamble)


def _read_record(reader: _Reader, index: int, verify: bool) -> ArrayEntry | None:
    """Read the record of array `index`; None at the end of the file, once that has been checked."""
    what = f"array record {index}"
    start = reader.take(_RECORD.size, what)
    marker, length = _RECORD.unpack(start)
    if marker == _END:
        _read_end(reader, start, index)
        return None
    if marker != _ARRAY or length > _LARGEST_DESCRIPTION:
        raise damaged(reader.path, f"an array or the end at byte {reader.position - _RECORD.size}", f"{start!r}")
    description = reader.part(length, what, start)[_RECORD.size :]
    fields = _parse(reader.path, description, {"name": str, "shape": list, "dtype": str, "nbytes": int}, what)
    name, shape, dtype, nbytes = (fields[key] for key in ("name", "shape", "dtype", "nbytes"))
    if _nbytes(shape, dtype) != nbytes:
        raise damaged(reader.path, f"{what} to hold {dtype} {shape}", f"{nbytes} bytes")
    offset = reader.position
    stored_as = f"array {name!r}"
    if verify:
        digest = blake2b(digest_size=_DIGEST)
        for piece in reader.pieces(nbytes, stored_as):
            digest.update(piece)
        reader.check(found := digest.digest(), stored_as)
    else:
        reader.skip(nbytes, stored_as)
        found = reader.take(_DIGEST, f"the digest of {stored_as}")
        reader.chain.update(found)
    return ArrayEntry(name, tuple(shape), dtype, nbytes, offset, found)


def _read_end(reader: _Reader, start: bytes, arrays: int) -> None:
    tail = start + reader.take(_TAIL.size - len(start), "the end")
    reader.chain.update(tail)
    digest = reader.chain.digest()
    reader.check(digest, "the whole file")
    _, count, nbytes = _TAIL.unpack(tail)
    if (count, nbytes) != (arrays, reader.position):
        raise damaged(reader.path, f"{count} arrays in {nbytes} bytes", f"{arrays} in {reader.position}")
    if reader.position != reader.size:
        raise damaged(reader.path, f"{nbytes} bytes", f"{reader.size}")


def _parse(path: Path, data: bytes, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"JSON in {what}", str(error)) from error
    if not isinstance(fields, dict) or any(not isinstance(fields.get(key), kind) for key, kind in kinds.items()):
        raise damaged(path, f"{', '.join(kinds)} in {what}", "other fields")
    return fields


def _nbytes(shape: list[Any], dtype: str) -> int | None:
    """Return the bytes of an array; None where shape or dtype make no sense."""
    if any(type(size) is not int or size < 0 for size in shape):
        return None
    try:
        parsed = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return None
    return math.prod(shape) * parsed.itemsize if parsed.kind in _KINDS else None


def _header_json(where: str, step: int, header: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps({"step": step, "header": dict(header)}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(where, "a header that JSON can hold", str(error)) from error


def _describe(where: str, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> tuple[bytes, int]:
    parsed = np.dtype(dtype)
    if parsed.kind not in _KINDS:
        raise CheckpointError(f"{where}, array {name!r}", "a numeric dtype", str(parsed))
    sizes = [int(size) for size in shape]
    nbytes = math.prod(sizes) * parsed.itemsize
    fields = {"name": name, "shape": sizes, "dtype": parsed.str, "nbytes": nbytes}
    return json.dumps(fields).encode(), nbytes


def _write_data(writer: _Writer, where: str, nbytes: int, pieces: Iterable[Chunk]) -> None:
    digest = blake2b(digest_size=_DIGEST)
    written = 0
    for piece in pieces:
        view = _bytes_of(piece)
        written += len(view)
        if written > nbytes:
            break
        digest.update(view)
        writer.put(view)
    if written != nbytes:
        came = f"more than {nbytes}" if written > nbytes else f"{written}"
        raise CheckpointError(where, f"pieces of {nbytes} bytes together", came)
    writer.seal(digest.digest())


def _bytes_of(piece: Chunk) -> memoryview:
    if isinstance(piece, np.ndarray):
        # Through numpy, because memoryview casts neither other byte orders nor empty arrays.
        return memoryview(np.ascontiguousarray(piece).reshape(-1).view(np.uint8))
    return memoryview(piece).cast("B")
