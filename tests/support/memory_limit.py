"""A limit on memory that the kernel enforces, for tests that must not believe a counter of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from bathyal.memory.errors import DeviceError
from bathyal.memory.process.limit import MemoryLimit, memory_limit


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryLimit]:
    """A memory cgroup, version 1 or 2, without swap; skips the test where none can be made."""
    group = memory_limit(limit_bytes)
    try:
        made = group.__enter__()
    except DeviceError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield made
    finally:
        group.__exit__(None, None, None)


def run_inside(group: MemoryLimit, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python inside `group` with `-m MODULE …` or `-c CODE`; the group holds nothing but that process."""
    command = group.command([sys.executable, *arguments])
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def peak_bytes(group: MemoryLimit) -> int:
    """The most memory that the group ever used, by the kernel's count."""
    peak = group.peak_bytes()
    if peak is None:
        pytest.skip("this kernel does not say how much memory a cgroup has used at most")
    return peak
