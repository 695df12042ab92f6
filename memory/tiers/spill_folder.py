"""The choice of the folder for a spill file: one that exists, can be written, and is on a disk.

A folder is judged by itself and by the type of its file system. A file system in memory (tmpfs, ramfs, hugetlbfs) is
refused, because bytes that are moved there would count against the very limit that they are moved for. An overlay is
taken as a disk, though its upper layer may be in memory: the system does not tell which it is.

Nothing here checks how much room there is, which `spill_file.py` does, nor whether a network file system is backed by a
disk.
Source: statfs(2).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..errors import ConfigError

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "BATHYAL_SPILL_DIR"
_OPTION = "--spill-dir"
_FALLBACKS = ("/var/tmp", "/tmp")
_MEMORY_FILE_SYSTEMS = MappingProxyType({0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x958458F6: "hugetlbfs"})
# f_type, a word, is the first field of struct statfs on Linux; the struct has 120 bytes on 64-bit machines.
_STATFS_BYTES = 512


def default_spill_folder(environment: Mapping[str, str] = os.environ, fallbacks: tuple[str, ...] = _FALLBACKS) -> Path:
    """Return the folder for spill files where the user names none.

    It is $BATHYAL_SPILL_DIR where that is set, else the first of $TMPDIR, /var/tmp and /tmp that can be used.

    Raises:
        ConfigError: $BATHYAL_SPILL_DIR cannot be used, or none of the others can; the error gives the reason for each.
    """
    if environment.get(FOLDER_VARIABLE):
        folder = Path(environment[FOLDER_VARIABLE])
        check_spill_folder(folder, f"${FOLDER_VARIABLE}")
        return folder
    reasons = []
    for name in dict.fromkeys(filter(None, (environment.get("TMPDIR"), *fallbacks))):
        try:
            check_spill_folder(Path(name))
            return Path(name)
        except ConfigError as error:
            logger.debug("no spill files in %s: %s", name, error.actual)
            reasons.append(f"{name}: {error.actual}")
    raise ConfigError(
        _OPTION,
        "a folder on a disk that can be written",
        "none (" + "; ".join(reasons) + ")",
        f"Name one with {_OPTION} or ${FOLDER_VARIABLE}.",
    )


def check_spill_folder(folder: Path, option: str = _OPTION) -> None:
    """Raise ConfigError, naming `option`, where `folder` is missing, cannot be written, or lies in memory."""
    reason = _refusal(folder)
    if reason:
        raise ConfigError(
            f"{option} {folder}",
            "a folder on a disk that can be written",
            reason,
            f"Name another folder with {_OPTION}.",
        )


def memory_file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder` where it keeps its files in memory, else ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "statfs"):
        return ""
    result = ctypes.create_string_buffer(_STATFS_BYTES)
    if libc.statfs(os.fsencode(folder), result) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
    kind = ctypes.c_ulong.from_buffer(result).value & 0xFFFFFFFF
    return _MEMORY_FILE_SYSTEMS.get(kind, "")


def _refusal(folder: Path) -> str:
    """Return why no spill file can lie in `folder`, or ""."""
    try:
        if not folder.is_dir():
            return "no folder, but a file" if folder.exists() else "no such folder"
        kind = memory_file_system(folder)
        if kind:
            return f"a file system in memory ({kind})"
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return os.strerror(errno.EROFS)
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return f"{os.strerror(errno.EACCES)}: no right to write for user {os.geteuid()}"
    except OSError as error:
        return error.strerror or str(error)
    return ""
