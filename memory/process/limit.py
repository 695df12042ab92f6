"""A limit on the memory of other processes that the kernel enforces, by a memory cgroup that is made for them.

Where the group is made follows from `/proc/self/cgroup` and the mounts of the cgroup hierarchies, version 1 or 2: below
this process's own group, so that every limit above still counts. In version 2 a group that holds processes may not hold
groups; there it is made below the nearest ancestor that allows it, unless that would escape a limit. Swap is forbidden
inside. Nothing here checks whether the machine has that many bytes; `available.py` does.

Source: Linux Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..errors import DeviceError
from .available import parse_cgroup, parse_mountinfo, visible_cgroups

logger = logging.getLogger(__name__)

LIMIT = MappingProxyType({1: "memory.limit_in_bytes", 2: "memory.max"})
SWAP = MappingProxyType({"memory.memsw.limit_in_bytes": None, "memory.swap.max": 0})
"""Files that forbid swap, with their value; None is the limit itself, which version 1 counts with memory."""
PEAK = ("memory.max_usage_in_bytes", "memory.peak")
KILLS = ("memory.oom_control", "memory.events")

REMOVAL_ATTEMPTS = 100
REMOVAL_PAUSE_SECONDS = 0.02

# The shell moves itself before Python starts, so that the interpreter and its libraries count too.
JOIN = 'echo $$ > "$0" && exec "$@"'


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A memory cgroup.

    Attributes:
        folder: where the kernel shows it.
        limit_bytes: what its processes may use together.
    """

    folder: Path
    limit_bytes: int

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs `arguments` as a process that is in the group from its start."""
        return ["/bin/sh", "-c", JOIN, str(self.folder / "cgroup.procs"), *arguments]

    def peak_bytes(self) -> int | None:
        """Return the most bytes that the group ever used, by the kernel's count, or None where it does not say."""
        found = (_read(self.folder / name) for name in PEAK)
        return next((int(text) for text in found if text is not None), None)

    def kills(self) -> int:
        """Return how many processes of the group the kernel has killed for want of memory; 0 where it does not say."""
        for name in KILLS:
            counted = re.search(r"^oom_kill (\d+)$", _read(self.folder / name) or "", re.MULTILINE)
            if counted:
                return int(counted[1])
        return 0


@contextmanager
def memory_limit(limit_bytes: int, root: Path = Path("/")) -> Iterator[MemoryLimit]:
    """Make a memory cgroup with a limit and without swap, and remove it at the end, when its processes must have ended.

    Args:
        limit_bytes: what all its processes may use together.
        root: the folder below which `proc` and the cgroup mounts lie; tests give another one than "/".

    Raises:
        DeviceError: no cgroup can be made.
    """
    folder = _make(limit_bytes, root)
    try:
        for name, value in SWAP.items():
            with suppress(OSError):
                if (folder / name).exists():
                    (folder / name).write_text(str(limit_bytes if value is None else value))
        yield MemoryLimit(folder, limit_bytes)
    finally:
        _remove(folder)


def _make(limit_bytes: int, root: Path) -> Path:
    paths = parse_cgroup(_read(root / "proc/self/cgroup") or "")
    reasons = []
    for mount in parse_mountinfo(_read(root / "proc/self/mountinfo") or ""):
        if mount.version not in paths:
            continue
        for parent in visible_cgroups(paths[mount.version], mount):
            group = root / parent.relative_to("/") / f"bathyal-{uuid.uuid4().hex[:8]}"
            try:
                group.mkdir()
                try:
                    (group / LIMIT[mount.version]).write_text(str(limit_bytes))
                except OSError:
                    group.rmdir()
                    raise
                return group
            except OSError as error:
                logger.debug("no memory cgroup below %s: %s", parent, error)
                reasons.append(f"{parent}: {error.strerror}")
            if mount.version == 1 or (_read(group.parent / LIMIT[2]) or "max") != "max":
                break
    raise DeviceError(
        "memory limit",
        "a cgroup hierarchy with the memory controller that this process may write to",
        "; ".join(reasons) or "none on this system",
        "Run as root, outside an unprivileged container.",
    )


def _remove(folder: Path) -> None:
    """Remove the group; a process that has just ended holds it for a moment."""
    for _ in range(REMOVAL_ATTEMPTS):
        try:
            folder.rmdir()
            return
        except OSError as error:
            reason = error
        time.sleep(REMOVAL_PAUSE_SECONDS)
    logger.warning("could not remove the cgroup %s: %s", folder, reason)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return None
