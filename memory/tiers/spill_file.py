"""A file for spilled tensors, which takes all of its room at once and is gone with the process, however that ends.

The file has no name (O_TMPFILE), or loses its name at once where the file system knows no nameless files, so that two
runs in one folder never meet and the kernel gives the room back even after SIGKILL. Its blocks are allocated before
the first transfer: a full disk is refused before training, not in the middle of it. (On a file system that copies on
write, a disk filled by others can still fail a later write.)

O_DIRECT is used where one block that is written with it can be read back. `io_error` turns an I/O error of the system
into one that tells a user what to do. Source: open(2), posix_fallocate(3).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from ..errors import BathyalError, BudgetError, ConfigError, DeviceError
from ..sizes import format_size_exact
from .tier import TIER_ALIGNMENT, align_to_tier

logger = logging.getLogger(__name__)

# The answers of file systems and kernels without nameless files: open(2), and EINVAL of some network file systems.
_NO_NAMELESS_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class SpillFile:
    """An open file without a name.

    Attributes:
        descriptor: open for reading and writing; whoever holds this closes it.
        where: the folder, for errors.
        direct: whether transfers bypass the page cache (O_DIRECT).
    """

    descriptor: int
    where: str
    direct: bool


def create_spill_file(folder: Path, nbytes: int, *, try_direct: bool = True) -> SpillFile:
    """Return a new file of `nbytes`, rounded up to 4096, with all its blocks allocated; nothing is left on failure.

    Args:
        folder: where the file lies.
        nbytes: its size.
        try_direct: use O_DIRECT where the file system has it.

    Raises:
        BudgetError: the disk, a quota or a resource limit leaves fewer bytes.
        ConfigError: the folder is missing or cannot be written.
        DeviceError: the disk failed, or the system cannot allocate files.
    """
    where = f"spill file in {folder}"
    if not hasattr(os, "posix_fallocate"):
        raise DeviceError(where, "a system with posix_fallocate", "one without", "Linux has it.")
    try:
        found = free_bytes(folder)
        descriptor = _open_nameless(folder)
    except OSError as error:
        raise io_error(error, where, "a folder that takes a new file") from error
    try:
        allocate(descriptor, where, nbytes, found)
        direct = try_direct and _can_bypass_cache(descriptor)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise io_error(error, where, f"{align_to_tier(nbytes)} bytes to be allocated") from error
        raise
    logger.debug("%s: %d bytes, %s", where, align_to_tier(nbytes), "direct" if direct else "through the page cache")
    return SpillFile(descriptor, where, direct)


def free_bytes(folder: Path) -> int:
    """Return the bytes that a file in `folder` can still take; raises OSError where the system does not tell."""
    vfs = os.statvfs(folder)
    return (vfs.f_bavail if os.geteuid() else vfs.f_bfree) * vfs.f_frsize


def allocate(descriptor: int, where: str, nbytes: int, found: int) -> None:
    """Give a file blocks for `nbytes`, rounded up to 4096.

    Args:
        descriptor: of the file.
        where: for errors.
        nbytes: how many bytes.
        found: how many bytes are free, for errors.

    Raises:
        BudgetError: fewer bytes are free.
        OSError: the disk failed.
    """
    try:
        os.posix_fallocate(descriptor, 0, align_to_tier(nbytes))
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise BudgetError(
            where,
            f"room for {format_size_exact(align_to_tier(nbytes))}",
            f"{format_size_exact(found)} free ({os.strerror(error.errno)})",
            "Free some room, give a smaller --spill-size, or name another disk with --spill-dir.",
        ) from error


def io_error(error: OSError, where: str, expected: str) -> BathyalError:
    """Return what to raise for `error`: ConfigError where another folder is the cure, else DeviceError."""
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    actual = f"{name}: {error.strerror or error}"
    if error.errno in _UNUSABLE:
        return ConfigError(where, expected, actual, "Name a folder that can be written with --spill-dir.")
    if error.errno in _FULL:
        return DeviceError(where, expected, actual, "Free some room, or name another disk with --spill-dir.")
    if error.errno == errno.EIO:
        return DeviceError(
            where, expected, actual, "The disk is failing: see the kernel's log, name another with --spill-dir."
        )
    return DeviceError(where, expected, actual)


def _open_nameless(folder: Path) -> int:
    if hasattr(os, "O_TMPFILE"):
        try:
            # O_EXCL: nobody can give it a name later.
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
        except OSError as error:
            if error.errno not in _NO_NAMELESS_FILES:
                raise
            logger.debug("no nameless file in %s: %s", folder, error)
    path = folder / f".bathyal-spill-{os.getpid()}-{uuid.uuid4().hex}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    finally:
        # Also when Ctrl-C comes in between; before any byte is written, so that a kill leaves an empty file at most.
        path.unlink(missing_ok=True)
    return descriptor


def _can_bypass_cache(descriptor: int) -> bool:
    """Turn O_DIRECT on and return True where a block that is written with it can be read back; else leave it off."""
    if not hasattr(os, "O_DIRECT"):
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    pattern = bytes(range(256)) * (TIER_ALIGNMENT // 256)
    with mmap.mmap(-1, TIER_ALIGNMENT) as block:  # a mapping starts on a page
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
            block[:] = pattern
            written = os.pwrite(descriptor, block, 0)
            block[:] = bytes(TIER_ALIGNMENT)
            if written == TIER_ALIGNMENT == os.preadv(descriptor, [block], 0) and block[:] == pattern:
                return True
            reason = "the block did not come back"
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            reason = str(error)
    logger.debug("no O_DIRECT: %s", reason)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return False
