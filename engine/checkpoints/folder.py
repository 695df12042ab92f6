"""Checkpoints in a directory: when one is durable, which are kept, which is the newest whole one.

Decides from the names `step-00001234.bathyal` and from the files' digests. A checkpoint is written under a temporary
name, flushed to the disk, renamed, and the directory flushed; only then are older ones removed. So a run that is
killed, a full disk or a failed write leaves every earlier checkpoint as it was.

A temporary file is locked (flock) by the process that writes it. The kernel drops the lock with the process, so the
next save can tell a stray from another process's work, across containers too; where a file system knows no locks,
strays are left. Two processes may write into one directory; they then share its `keep` newest.

Does not check that a checkpoint belongs to this network or this run: the trainer compares the header.
Source: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), for the order of write, flush and rename.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...memory.errors import CheckpointError
from ...memory.sizes import format_size_exact
from ..data.sources import require_count
from .reader import Checkpoint, read_checkpoint
from .writer import ArraySource, count_array_bytes, count_frame_bytes, write

__all__ = ["Checkpoint", "find_newest", "name_checkpoint", "prepare", "read_checkpoint", "save"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step-([0-9]{8,})\.bathyal")
_TEMPORARY = re.compile(r"\.step-[0-9]{8,}\.[0-9]+-[0-9a-f]{16}\.tmp")
_FLUSH_EVERY = 64 * 2**20


def name_checkpoint(directory: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return directory / f"step-{step:08d}.bathyal"


def prepare(directory: Path) -> None:
    """Make the directory where it is missing, and make sure that files can be written there.

    Raises:
        CheckpointError: they cannot; better now than after hours of training.
    """
    try:
        _make_directory(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        hint = "Choose another folder for the checkpoints."
        raise CheckpointError(str(directory), "a folder to write into", error.strerror or str(error), hint) from error


def save(directory: Path, step: int, header: Mapping[str, Any], arrays: Iterable[ArraySource], keep: int = 2) -> Path:
    """Write a checkpoint, make it durable, and return its path; the directory is made where it is missing.

    The arrays, and the pieces of each, are drawn one by one, so that no more than a piece need be in memory.

    Args:
        directory: where the checkpoints of a run lie.
        step: training steps done, at least 0; a checkpoint of the same step is replaced.
        header: what resuming needs beside the arrays; JSON, with texts as keys.
        arrays: (name, shape, dtype, pieces of the C-ordered bytes).
        keep: how many stay, counted from this one downwards; later steps are left alone, so that a damaged later file
            does not push a whole one out.

    Raises:
        CheckpointError: the disk is full, the directory cannot be written, or the arrays are not what they say; the
            earlier checkpoints are as they were.
        ConfigError: `step` or `keep` out of range.
    """
    require_count("step", step, 0)
    require_count("keep", keep)
    path = name_checkpoint(directory, step)
    sizes = _Sizes(arrays, str(path), count_frame_bytes(str(path), step, header))
    try:
        with _mark_storage_errors():
            _make_directory(directory)
            _remove_strays(directory)
            descriptor, temporary = _create_temporary(directory, step)
        try:
            write(_Output(descriptor).write, str(path), step, header, sizes)
            with _mark_storage_errors():
                os.fsync(descriptor)
                temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        with _mark_storage_errors():
            _flush_directory(directory)
    except _StorageError as failure:
        raise _make_write_error(path, sizes, failure.error) from failure.error
    _remove_older(directory, step, keep)
    return path


def find_newest(directory: Path) -> tuple[Checkpoint | None, list[CheckpointError]]:
    """Return the newest whole checkpoint, every byte of it checked, and an error for each newer one that is damaged.

    (None, …) where there is none, or no such directory.

    Raises:
        CheckpointError: the directory cannot be read.
    """
    errors: list[CheckpointError] = []
    for step in sorted(_list_steps(directory), reverse=True):
        try:
            return read_checkpoint(name_checkpoint(directory, step)), errors
        except CheckpointError as error:
            logger.warning("checkpoint left out: %s", error)
            errors.append(error)
    return None, errors


class _StorageError(Exception):
    """The file system refused; keeps it apart from what the caller's own arrays may raise."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _mark_storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _StorageError(error) from error


class _Sizes:
    """Passes the arrays on, and counts the bytes that the file needs."""

    def __init__(self, arrays: Iterable[ArraySource], where: str, frame: int) -> None:
        self._arrays = iter(arrays)
        self._where = where
        self.nbytes = frame

    def __iter__(self) -> Iterator[ArraySource]:
        for name, shape, dtype, pieces in self._arrays:
            self.nbytes += count_array_bytes(self._where, name, shape, dtype)
            yield name, shape, dtype, pieces

    def count_rest(self) -> str:
        """Return the bytes needed by all arrays, for a message; the arrays not yet drawn tell theirs now."""
        try:
            for _ in self:
                pass
        except Exception:
            logger.debug("the sizes of the remaining arrays are not known", exc_info=True)
            return f"at least {format_size_exact(self.nbytes)}"
        return format_size_exact(self.nbytes)


class _Output:
    """Writes everything it is given, and keeps the pages that wait for the disk few."""

    __slots__ = ("_descriptor", "_waiting")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting = 0

    def write(self, data: memoryview) -> None:
        written = 0
        while written < len(data):
            with _mark_storage_errors():
                written += os.write(self._descriptor, data[written : written + _FLUSH_EVERY])
        self._waiting += written
        if self._waiting >= _FLUSH_EVERY:
            # Under a cgroup's limit, gigabytes of dirty pages would stall the training that goes on beside.
            with _mark_storage_errors():
                os.fdatasync(self._descriptor)
            self._waiting = 0


def _make_write_error(path: Path, sizes: _Sizes, error: OSError) -> CheckpointError:
    reason = error.strerror or str(error)
    hint = "The earlier checkpoints are as they were."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = f"Free some space, keep fewer checkpoints, or choose another directory. {hint}"
    return CheckpointError(
        str(path), f"to write {sizes.count_rest()}", f"{reason}; {_describe_free(path.parent)} free", hint
    )


def _describe_free(directory: Path) -> str:
    for existing in (directory, *directory.parents):
        try:
            found = os.statvfs(existing)
        except OSError:
            continue
        return format_size_exact(found.f_bavail * found.f_frsize)
    return "an unknown number of bytes"


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        _flush_directory(directory.parent)


def _create_temporary(directory: Path, step: int) -> tuple[int, Path]:
    """Create a file that no other process takes for a stray: locked, and still there once it is."""
    while True:
        path = directory / f".step-{step:08d}.{os.getpid()}-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            logger.debug("%s: no lock (%s); others cannot lock it either, and leave it", path, error)
        if os.fstat(descriptor).st_nlink > 0:
            return descriptor, path
        os.close(descriptor)  # Another process had locked and removed it before our lock.


def _remove_strays(directory: Path) -> None:
    for path in directory.iterdir():
        if not _TEMPORARY.fullmatch(path.name):
            continue
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            logger.debug("%s is left: %s", path, error)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            logger.info("%s removed: its writer was killed", path)
        except OSError as error:
            logger.debug("%s is left: %s", path, error)
        finally:
            os.close(descriptor)


def _remove_older(directory: Path, step: int, keep: int) -> None:
    earlier = sorted(other for other in _list_steps(directory) if other <= step)
    for old in earlier[:-keep]:
        try:
            name_checkpoint(directory, old).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("an old checkpoint could not be removed: %s", error)


def _list_steps(directory: Path) -> list[int]:
    try:
        names = {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(str(directory), "a directory to read", error.strerror or str(error)) from error
    steps = [int(found[1]) for found in map(_NAME.fullmatch, names) if found]
    # A name with more zeros than we write is someone else's: the step would be looked for under our name.
    return [step for step in set(steps) if name_checkpoint(directory, step).name in names]


def _flush_directory(directory: Path) -> None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # Some file systems cannot flush a directory.
            raise
