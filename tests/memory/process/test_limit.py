"""A limit that the kernel enforces: on what runs inside, and on nothing else."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bathyal.memory.errors import DeviceError
from bathyal.memory.process.limit import memory_limit

MIB = 2**20
TAKE = "import sys; b = bytearray(int(sys.argv[1])); b[::4096] = b'1' * len(b[::4096]); print(len(b))"

try:
    with memory_limit(64 * MIB):
        can_limit = True
except DeviceError:
    can_limit = False

needs_cgroups = pytest.mark.skipif(not can_limit, reason="needs root and a writable cgroup mount")


def take(limit, nbytes):
    return subprocess.run(limit.command([sys.executable, "-c", TAKE, str(nbytes)]), capture_output=True, text=True)


@needs_cgroups
def test_what_fits_runs_and_is_counted():
    with memory_limit(100 * MIB) as limit:
        done = take(limit, 40 * MIB)
        assert done.stdout.strip() == str(40 * MIB), done.stderr
        assert 40 * MIB < limit.peak_bytes() <= 100 * MIB
        assert limit.kills() == 0


@needs_cgroups
def test_what_does_not_fit_is_killed_and_the_kill_is_counted():
    with memory_limit(60 * MIB) as limit:
        assert take(limit, 200 * MIB).returncode == -signal.SIGKILL
        assert limit.kills() == 1
        assert limit.peak_bytes() <= 60 * MIB


@needs_cgroups
def test_groups_are_apart_and_gone_afterwards():
    with memory_limit(100 * MIB) as first, memory_limit(100 * MIB) as second:
        take(first, 50 * MIB)
        assert first.peak_bytes() > 50 * MIB > second.peak_bytes()
    assert not first.folder.exists()
    assert not second.folder.exists()


def system(root, cgroup, mountinfo):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mountinfo)


def test_a_system_without_cgroups_is_an_error(tmp_path):
    with pytest.raises(DeviceError, match="none on this system"), memory_limit(2**30, tmp_path):
        pass


def test_version_2_needs_the_memory_controller(tmp_path):
    """A group whose folder cannot be made, here below a file instead of a mount, says where and why."""
    system(tmp_path, "0::/session\n", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cg").write_text("")
    with pytest.raises(DeviceError, match="/cg/session"), memory_limit(2**30, tmp_path):
        pass


def test_version_2_writes_its_own_files_below_the_nearest_group_that_takes_one(tmp_path):
    system(tmp_path, "0::/outer/session\n", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cg/outer").mkdir(parents=True)
    limit = memory_limit(2**30, tmp_path)
    made = limit.__enter__()
    assert made.folder.parent == tmp_path / "cg/outer", "there is no folder of the session here"
    assert (made.folder / "memory.max").read_text() == str(2**30)
    assert made.peak_bytes() is None
    (made.folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert made.kills() == 2
    for file in made.folder.iterdir():  # what the kernel removes with the group
        file.unlink()
    limit.__exit__(None, None, None)
    assert not made.folder.exists()


def test_an_inner_limit_of_version_2_is_not_escaped(tmp_path, monkeypatch):
    system(tmp_path, "0::/outer/session\n", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n")
    session = tmp_path / "cg/outer/session"
    session.mkdir(parents=True)
    (session / "memory.max").write_text("1000000")
    mkdir = Path.mkdir

    def refuse(path, *arguments, **options):
        if path.parent == session:
            raise PermissionError(13, "Permission denied")
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DeviceError, match="session: Permission denied"), memory_limit(2**30, tmp_path):
        pass
    assert [p.name for p in (tmp_path / "cg/outer").iterdir()] == ["session"]
