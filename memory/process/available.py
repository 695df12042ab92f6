"""How many bytes this process may still take before the kernel kills something.

The answer comes from `/proc/meminfo` (MemAvailable) and from the limit and usage of the process's control group and of
all its ancestors, in version 1 and version 2 of cgroups. The least of them counts, because a limit on any ancestor
kills this process too. Page cache that the kernel drops on demand (`inactive_file`) does not count as used. Swap is
left out on purpose: a training step that swaps is slower than any recomputation.

Three things are not considered: resource limits (under `ulimit -v` the mapping itself fails), cgroups above the root of
a container's namespace (they cannot be seen), and what other processes take later. Where there is no `/proc/meminfo`
(macOS, BSD) the answer is `sysconf`'s free pages, or all physical pages where it does not tell these: an upper bound
only.

Source: Linux Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst, proc_pid_mountinfo(5), cgroups(7).
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import BudgetError, DeviceError
from ..sizes import format_size_exact

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A mounted cgroup hierarchy.

    Attributes:
        version: 1 or 2.
        root: the cgroup that appears at the mount point; not "/" in a container without its own namespace.
        mount_point: where the hierarchy is mounted.
    """

    version: int
    root: PurePosixPath
    mount_point: PurePosixPath


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still take: min of MemAvailable and every cgroup's limit − usage.

    Args:
        root: the folder below which `proc` and the cgroup mounts lie; tests give another one than "/".

    Raises:
        DeviceError: the system does not tell how much memory it has.
    """
    meminfo = _read(root / "proc/meminfo")
    available = _physical_memory() if meminfo is None else parse_meminfo(meminfo)
    for folder, version in find_cgroups(root):
        free = _free_in_cgroup(folder, version)
        if free is not None and free < available:
            logger.debug("%s leaves %d bytes, fewer than %d", folder, free, available)
            available = free
    return available


def default_budget(process_need: int, root: Path = Path("/")) -> int:
    """Return the budget used where the user gives none: 80 % of the free memory, less `process_need`, in bytes.

    Args:
        process_need: bytes that the process will still take outside the arena (libraries, batches waiting).
        root: as for `free_memory`.

    Raises:
        BudgetError: nothing would be left.
    """
    free = free_memory(root)
    budget = free * 4 // 5 - process_need
    if budget <= 0:
        raise BudgetError(
            "memory",
            f"more than {format_size_exact(process_need)} in 80 % of the free memory, for the process itself",
            f"{format_size_exact(free)} free",
            "End other programs, raise the cgroup's limit, or give a budget.",
        )
    return budget


def parse_meminfo(text: str) -> int:
    """Return MemAvailable of `/proc/meminfo` in bytes, or MemFree where the kernel is older than 3.14."""
    kib = {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    if "MemAvailable" in kib:
        return kib["MemAvailable"] * 1024
    if "MemFree" in kib:
        return kib["MemFree"] * 1024
    raise DeviceError(
        "/proc/meminfo", "a line MemAvailable or MemFree", "neither", "Give memory= as a number of bytes."
    )


def parse_cgroup(text: str, controller: str = "memory") -> dict[int, PurePosixPath]:
    """Return the cgroup of this process that has a controller, by cgroup version, from `/proc/self/cgroup`."""
    paths = {}
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            paths[2] = PurePosixPath(path)
        elif controller in controllers.split(","):
            paths[1] = PurePosixPath(path)
    return paths


def parse_mountinfo(text: str, controller: str = "memory") -> tuple[CgroupMount, ...]:
    """Return the cgroup mounts that may have a controller, from `/proc/self/mountinfo`."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        version = {"cgroup": 1, "cgroup2": 2}.get(kind[0])
        if version is None or (version == 1 and controller not in kind[2].split(",")):
            continue
        mounts.append(CgroupMount(version, PurePosixPath(_unescape(fields[3])), PurePosixPath(_unescape(fields[4]))))
    return tuple(mounts)


def visible_cgroups(path: PurePosixPath, mount: CgroupMount) -> tuple[PurePosixPath, ...]:
    """Return where cgroup `path` and its ancestors appear below `mount`, the innermost first.

    For a path outside the mount (a container that sees its host's names, or ".." out of a namespace) only the mount
    point is returned, because it is the innermost group that can be seen.
    """
    if ".." in path.parts or not path.is_relative_to(mount.root):
        return (mount.mount_point,)
    inner = path.relative_to(mount.root)
    return tuple(mount.mount_point / step for step in (inner, *inner.parents))


def find_cgroups(root: Path, controller: str = "memory") -> list[tuple[Path, int]]:
    """Return folder and version of the cgroups that may hold this process to something, its own and its ancestors.

    Args:
        root: as for `free_memory`.
        controller: what bounds: "memory", "cpu".
    """
    cgroup, mountinfo = _read(root / "proc/self/cgroup"), _read(root / "proc/self/mountinfo")
    if cgroup is None or mountinfo is None:
        return []
    paths = parse_cgroup(cgroup, controller)
    return [
        (root / folder.relative_to("/"), mount.version)
        for mount in parse_mountinfo(mountinfo, controller)
        if mount.version in paths and mount.mount_point.is_absolute()
        for folder in dict.fromkeys(visible_cgroups(paths[mount.version], mount))
    ]


def _free_in_cgroup(folder: Path, version: int) -> int | None:
    """Return limit − (usage − droppable cache) of one group, or None where it has no limit."""
    if version == 1:
        limit, usage = _read_number(folder / "memory.limit_in_bytes"), _read_number(folder / "memory.usage_in_bytes")
    else:
        # Above memory.high nothing is killed, but every allocation is made to sleep: a limit for our purpose.
        limits = [_read_number(folder / name) for name in ("memory.max", "memory.high")]
        limit = min((number for number in limits if number is not None), default=None)
        usage = _read_number(folder / "memory.current")
    if limit is None or usage is None:
        return None
    return max(0, limit - max(0, usage - _droppable(folder)))


def _droppable(folder: Path) -> int:
    text = _read(folder / "memory.stat") or ""
    stat = {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
    # Version 1 counts the group alone in inactive_file, but usage counts its descendants too.
    return stat.get("total_inactive_file", stat.get("inactive_file", 0))


def _physical_memory() -> int:
    names = getattr(os, "sysconf_names", {})
    pages = next((name for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in names), None)
    if pages is None or "SC_PAGE_SIZE" not in names:
        raise DeviceError(
            "free memory",
            "/proc/meminfo or sysconf",
            "neither on this system",
            "Linux tells; so do other POSIX systems.",
        )
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


def _read_number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda matched: chr(int(matched[1], 8)), field)
