"""Writing a checkpoint file as a stream: one piece of one array in memory at a time.

Decides the bytes that `format.py` describes, from a header and arrays that are drawn one after another.
Does not decide where they go, nor when they are durable (`folder.py` does).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...memory.errors import CheckpointError
from .format import ARRAY, DIGEST, END, KINDS, MAGIC, PREAMBLE, RECORD, TAIL, VERSION, make_digest

Chunk: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[Any]"
ArraySource: TypeAlias = "tuple[str, tuple[int, ...], npt.DTypeLike, Iterable[Chunk]]"
"""Name, shape, dtype, and the C-ordered bytes in pieces, which are drawn one after another."""


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
    stored = _encode_header(where, step, header)
    writer.part(PREAMBLE.pack(MAGIC, VERSION, len(stored)))
    writer.part(stored)
    names: set[str] = set()
    for name, shape, dtype, pieces in arrays:
        if name in names:
            raise CheckpointError(where, "each array once", f"{name!r} twice")
        names.add(name)
        description, nbytes = _describe(where, name, shape, dtype)
        writer.part(RECORD.pack(ARRAY, len(description)) + description)
        _write_data(writer, f"{where}, array {name!r}", nbytes, pieces)
    writer.end(len(names))


def count_array_bytes(where: str, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Return the bytes that an array takes in a file.

    Raises:
        CheckpointError: a dtype that is not numeric.
    """
    description, nbytes = _describe(where, name, shape, dtype)
    return RECORD.size + len(description) + DIGEST + nbytes + DIGEST


def count_frame_bytes(where: str, step: int, header: Mapping[str, Any]) -> int:
    """Return the bytes of a file without arrays.

    Raises:
        CheckpointError: a header that is not JSON.
    """
    return PREAMBLE.size + len(_encode_header(where, step, header)) + TAIL.size + 3 * DIGEST


class _Writer:
    """Puts a digest after each part and chains them."""

    __slots__ = ("_chain", "_nbytes", "_output")

    def __init__(self, output: Callable[[memoryview], None]) -> None:
        self._output = output
        self._chain = make_digest()
        self._nbytes = 0

    def put(self, data: bytes | memoryview) -> None:
        self._output(memoryview(data))
        self._nbytes += len(data)

    def seal(self, digest: bytes) -> None:
        self._chain.update(digest)
        self.put(digest)

    def part(self, data: bytes) -> None:
        self.put(data)
        self.seal(make_digest(data).digest())

    def end(self, arrays: int) -> None:
        tail = TAIL.pack(END, arrays, self._nbytes + TAIL.size + DIGEST)
        self.put(tail)
        self._chain.update(tail)
        self.put(self._chain.digest())


def _encode_header(where: str, step: int, header: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps({"step": step, "header": dict(header)}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(where, "a header that JSON can hold", str(error)) from error


def _describe(where: str, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> tuple[bytes, int]:
    parsed = np.dtype(dtype)
    if parsed.kind not in KINDS:
        raise CheckpointError(f"{where}, array {name!r}", "a numeric dtype", str(parsed))
    sizes = [int(size) for size in shape]
    nbytes = math.prod(sizes) * parsed.itemsize
    fields = {"name": name, "shape": sizes, "dtype": parsed.str, "nbytes": nbytes}
    return json.dumps(fields).encode(), nbytes


def _write_data(writer: _Writer, where: str, nbytes: int, pieces: Iterable[Chunk]) -> None:
    digest = make_digest()
    written = 0
    for piece in pieces:
        view = _view_bytes(piece)
        written += len(view)
        if written > nbytes:
            break
        digest.update(view)
        writer.put(view)
    if written != nbytes:
        came = f"more than {nbytes}" if written > nbytes else f"{written}"
        raise CheckpointError(where, f"pieces of {nbytes} bytes together", came)
    writer.seal(digest.digest())


def _view_bytes(piece: Chunk) -> memoryview:
    if isinstance(piece, np.ndarray):
        # Through numpy, because memoryview casts neither other byte orders nor empty arrays.
        return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
    view = memoryview(piece)
    return view.cast("B") if view.nbytes else memoryview(b"")  # An empty view cannot be cast.
