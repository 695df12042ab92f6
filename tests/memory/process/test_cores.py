"""How many cores a process may use: by affinity, by the quotas of its control groups, and by OMP_NUM_THREADS."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from bathyal.memory.process.cores import count_default_threads, count_usable_cores

V1_CGROUP = "4:memory:/elsewhere\n1:cpu,cpuacct:/outer/job\n0::/\n"
V1_MOUNTS = (
    "31 23 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A function that writes files of a system in which affinity allows 16 cores, and returns its root."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))

    def write(files):
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


def version_1(outer, inner, period=100_000):
    folder = "sys/fs/cgroup/cpu,cpuacct/outer"
    return {
        "proc/self/cgroup": V1_CGROUP,
        "proc/self/mountinfo": V1_MOUNTS,
        f"{folder}/cpu.cfs_quota_us": f"{outer}\n",
        f"{folder}/cpu.cfs_period_us": f"{period}\n",
        f"{folder}/job/cpu.cfs_quota_us": f"{inner}\n",
        f"{folder}/job/cpu.cfs_period_us": f"{period}\n",
    }


def version_2(outer, inner):
    folder = "sys/fs/cgroup/outer"
    files = {"proc/self/cgroup": "0::/outer/job\n", "proc/self/mountinfo": V2_MOUNTS}
    return files | {f"{folder}/cpu.max": outer, f"{folder}/job/cpu.max": inner}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),
        (version_1(-1, -1), 16),
        (version_1(-1, 200_000), 2),
        (version_1(400_000, -1), 4),
        (version_1(300_000, 800_000), 3),
        (version_1(-1, 150_000), 2),
        (version_1(-1, 20_000), 1),
        (version_1(-1, 100_000, period=50_000), 2),
        (version_1(-1, 6_400_000), 16),
        (version_1("broken", ""), 16),
        (version_2("max 100000\n", "max 100000\n"), 16),
        (version_2("max 100000\n", "250000 100000\n"), 3),
        (version_2("100000 100000\n", "max 100000\n"), 1),
    ],
)
def test_the_least_of_affinity_and_every_quota_counts(system, files, cores):
    root = system(files)
    assert count_usable_cores(root) == cores
    assert count_default_threads(root, {}) == cores


@pytest.mark.parametrize(
    ("variable", "threads"),
    [("1", 1), ("3", 3), (" 2 ", 2), ("2,4", 2), ("99", 16), ("0", 16), ("", 16), ("-1", 16), ("many", 16)],
)
def test_the_variable_bounds_the_default(system, variable, threads):
    assert count_default_threads(system({}), {"OMP_NUM_THREADS": variable}) == threads
    assert count_usable_cores(system({})) == 16


@pytest.fixture
def half_a_core():
    """A group of the real kernel that may use half a core."""
    parent = Path("/sys/fs/cgroup/cpu")
    if not (parent / "cpu.cfs_quota_us").exists() or not os.access(parent, os.W_OK):
        pytest.skip("no CPU group of version 1 can be made here")
    group = parent / f"bathyal-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    (group / "cpu.cfs_quota_us").write_text("50000")
    yield group
    group.rmdir()


def test_a_quota_of_the_kernel_counts(half_a_core):
    program = "from bathyal.memory.process.cores import count_default_threads; print(count_default_threads())"
    command = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(half_a_core / "cgroup.procs")]
    done = subprocess.run([*command, sys.executable, "-S", "-c", PATHS + program], capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stderr


PATHS = f"import sys; sys.path[:0] = {sys.path!r}; "
