"""A limit on memory that the kernel enforces, for tests that must not believe a counter of ours."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bathyal.memory.available import parse_cgroup, parse_mountinfo, visible_cgroups

LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
SWAP = ("memory.memsw.limit_in_bytes", "memory.swap.max")

JOIN = """
import os, pathlib, runpy, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
del sys.argv[1]
if sys.argv[1] == "-m":
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    exec(sys.argv[2])
"""


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup, version 1 or 2, without swap, below this process's own, so that every limit above still counts.

    Skips the test where none can be made.
    """
    proc = Path("/proc/self")
    if not (proc / "cgroup").exists():
        pytest.skip("no cgroups on this system")
    paths = parse_cgroup((proc / "cgroup").read_text())
    for mount in parse_mountinfo((proc / "mountinfo").read_text()):
        if mount.version not in paths:
            continue
        group = Path(visible_cgroups(paths[mount.version], mount)[0]) / f"bathyal-test-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                (group / LIMIT[mount.version]).write_text(str(limit_bytes))
            except OSError:  # version 2 without the memory controller in this subtree
                continue
            for name in SWAP:
                with suppress(OSError):
                    if (group / name).exists():
                        (group / name).write_text(str(limit_bytes) if "memsw" in name else "0")
            yield group
            return
        finally:
            group.rmdir()
    pytest.skip("no memory cgroup can be made here (root and a writable cgroup mount are needed)")


def run_inside(group: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python inside `group` with `-m MODULE …` or `-c CODE`; the group holds nothing but that process."""
    return subprocess.run(
        [sys.executable, "-c", JOIN, str(group), *arguments], capture_output=True, text=True, timeout=300
    )


def peak_bytes(group: Path) -> int:
    """The most memory that the group ever used, by the kernel's count."""
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        if (group / name).exists():
            return int((group / name).read_text())
    pytest.skip("this kernel does not say how much memory a cgroup has used at most")
