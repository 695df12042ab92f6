"""The layout of a checkpoint file, in which no damaged byte goes unnoticed.

A file is: a preamble (magic, version, length of the header), the header in JSON, a record for each array (marker,
length, description in JSON, then the data), and an end (marker, number of arrays, length of the file). Each of these
parts is followed by its BLAKE2b-256 digest; the digest at the end is over all digests before it too, so that parts
cannot be left out, repeated or mixed between files. Integers are little-endian. The preamble stays as it is in all
versions.

Does not decide where the file lies or when it is durable (`folder.py` does), nor whether it fits the network.
BLAKE2: RFC 7693. It detects damage; it does not prove who wrote the file.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

VERSION = 1
MAGIC = b"BATHYAL\n"
PREAMBLE = struct.Struct("<8sIQ")
"""Magic, version, bytes of the header."""

ARRAY, END = b"ARR\n", b"END\n"
RECORD = struct.Struct("<4sI")
"""ARRAY, bytes of the description."""

TAIL = struct.Struct("<4sQQ")
"""END, number of arrays, bytes of the whole file."""

DIGEST = 32
KINDS = "biufc"
"""The kinds of dtype that a file can hold; nothing that needs pickling."""


def make_digest(data: bytes | memoryview = b"") -> blake2b:
    """Return a BLAKE2b-256 hash of `data`, to be carried on or read."""
    return blake2b(data, digest_size=DIGEST)
