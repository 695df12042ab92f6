import os
from pathlib import PurePosixPath

import pytest

from bathyal.memory.errors import BudgetError, DeviceError
from bathyal.memory.process.available import (
    CgroupMount,
    default_budget,
    free_memory,
    largest_budget,
    parse_cgroup,
    parse_meminfo,
    parse_mountinfo,
    visible_cgroups,
)
from tests.support.memory_limit import memory_cgroup, run_inside

MIB = 2**20
MEMINFO = (
    "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\nHugePages_Total:       0\n"
)
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V1_OTHER = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:4 - cgroup cgroup rw,cpu\n"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


class FakeSystem:
    """A tree of files under a folder, in the shape of /proc and /sys."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, cgroup, mountinfo, meminfo=MEMINFO):
        self.write("proc/meminfo", meminfo)
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/self/mountinfo", mountinfo)

    def v1(self, group, limit, usage, stat=""):
        folder = f"sys/fs/cgroup/memory/{group}"
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{folder}/memory.usage_in_bytes", f"{usage}\n")
        self.write(f"{folder}/memory.stat", stat)

    def v2(self, group, limit, usage, stat="", high="max"):
        folder = f"sys/fs/cgroup/{group}"
        self.write(f"{folder}/memory.max", f"{limit}\n")
        self.write(f"{folder}/memory.high", f"{high}\n")
        self.write(f"{folder}/memory.current", f"{usage}\n")
        self.write(f"{folder}/memory.stat", stat)


@pytest.fixture
def system(tmp_path):
    return FakeSystem(tmp_path)


def test_without_cgroups_the_available_memory_counts(system):
    system.write("proc/meminfo", MEMINFO)
    assert free_memory(system.root) == 8_000_000 * 1024


def test_version_1_limit_less_usage_counts(system):
    system.process("4:memory:/job\n1:cpu:/\n", V1_OTHER + V1_MOUNT)
    system.v1("", 9223372036854771712, 900 * MIB)
    system.v1("job", 512 * MIB, 100 * MIB)
    assert free_memory(system.root) == 412 * MIB


def test_version_2_limit_less_usage_counts(system):
    system.process("0::/user.slice/job\n", V2_MOUNT)
    system.v2("user.slice", "max", 900 * MIB)
    system.v2("user.slice/job", 512 * MIB, 100 * MIB)
    assert free_memory(system.root) == 412 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_ancestor_counts_with_its_own_usage(system, version):
    if version == 1:
        system.process("4:memory,other:/a/b/c\n", V1_MOUNT)
        write = system.v1
    else:
        system.process("0::/a/b/c\n", V2_MOUNT)
        write = system.v2
    write("a", 4000 * MIB, 3900 * MIB)  # siblings of b have used nearly all
    write("a/b", 2000 * MIB, 300 * MIB)
    write("a/b/c", 1000 * MIB, 200 * MIB)
    assert free_memory(system.root) == 100 * MIB


def test_droppable_cache_is_not_usage_in_version_1_where_descendants_count(system):
    system.process("4:memory:/job\n", V1_MOUNT)
    alone = f"cache 1\ninactive_file {10 * MIB}\nactive_file {10 * MIB}\ndirty 1\nshmem 1\n"
    whole = f"total_inactive_file {60 * MIB}\ntotal_active_file {20 * MIB}\ntotal_unevictable {9 * MIB}\n"
    system.v1("job", 512 * MIB, 100 * MIB, alone + whole)
    assert free_memory(system.root) == 492 * MIB


def test_droppable_cache_is_not_usage_in_version_2(system):
    system.process("0::/job\n", V2_MOUNT)
    stat = f"anon 5\ninactive_file {60 * MIB}\nactive_file {20 * MIB}\nunevictable {9 * MIB}\n"
    system.v2("job", 512 * MIB, 100 * MIB, stat)
    assert free_memory(system.root) == 492 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_pages_of_files_that_are_not_yet_written_or_are_mapped_count_as_used(system, version):
    counts = {"inactive_file": 60, "active_file": 30, "shmem": 3}
    counts |= {"dirty": 5, "writeback": 4, "mapped_file": 9} if version == 1 else {}
    counts |= {"file_dirty": 5, "file_writeback": 4, "file_mapped": 9} if version == 2 else {}
    prefix = "total_" if version == 1 else ""
    stat = "".join(f"{prefix}{name} {number * MIB}\n" for name, number in counts.items())
    system.process("4:memory:/job\n" if version == 1 else "0::/job\n", V1_MOUNT if version == 1 else V2_MOUNT)
    (system.v1 if version == 1 else system.v2)("job", 512 * MIB, 100 * MIB, stat)
    # 90 of files, less 5 and 4 that must be written first and 9 − 3 that are mapped and no shared memory.
    assert free_memory(system.root) == (412 + 90 - 9 - 6) * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_pages_of_files_are_droppable_in_every_ancestor(system, version):
    system.process("4:memory:/a/b\n" if version == 1 else "0::/a/b\n", V1_MOUNT if version == 1 else V2_MOUNT)
    write, prefix = (system.v1, "total_") if version == 1 else (system.v2, "")
    write("a", 400 * MIB, 390 * MIB, f"{prefix}active_file {300 * MIB}\n")
    write("a/b", 380 * MIB, 370 * MIB, f"{prefix}active_file {300 * MIB}\n")
    assert free_memory(system.root) == 310 * MIB


def test_more_written_than_cached_makes_nothing_less_than_the_usage(system):
    system.process("0::/job\n", V2_MOUNT)
    system.v2("job", 512 * MIB, 100 * MIB, f"inactive_file 7\nfile_dirty {60 * MIB}\nfile_mapped {60 * MIB}\n")
    assert free_memory(system.root) == 412 * MIB


def test_droppable_cache_above_usage_never_makes_more_than_the_limit(system):
    system.process("0::/job\n", V2_MOUNT)
    system.v2("job", 512 * MIB, 10 * MIB, f"inactive_file {60 * MIB}\n")
    assert free_memory(system.root) == 512 * MIB


def test_a_group_over_its_limit_leaves_nothing(system):
    system.process("0::/job\n", V2_MOUNT)
    system.v2("job", 100 * MIB, 120 * MIB)
    assert free_memory(system.root) == 0


def test_the_throttling_limit_of_version_2_counts(system):
    system.process("0::/job\n", V2_MOUNT)
    system.v2("job", 512 * MIB, 100 * MIB, high=300 * MIB)
    assert free_memory(system.root) == 200 * MIB


def test_both_versions_mounted_at_once(system):
    hybrid = V2_MOUNT.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    system.process("4:memory:/job\n0::/job\n", V1_MOUNT + hybrid)
    system.v1("job", 512 * MIB, 100 * MIB)
    system.v2("unified/job", 300 * MIB, 100 * MIB)
    assert free_memory(system.root) == 200 * MIB


def test_a_container_whose_mount_starts_at_its_own_group(system):
    system.process("4:memory:/docker/abc\n", V1_MOUNT.replace(" / ", " /docker/abc "))
    system.v1("", 512 * MIB, 100 * MIB)
    assert free_memory(system.root) == 412 * MIB


def test_groups_whose_files_are_absent_or_odd_do_not_limit(system):
    system.process("0::/a/b\nnonsense\n", "nonsense\n1 2 3 - x\n" + V2_MOUNT)
    system.write("sys/fs/cgroup/a/memory.max", "512\n")  # no usage
    system.write("sys/fs/cgroup/a/b/memory.max", "soon\n")
    assert free_memory(system.root) == 8_000_000 * 1024


def test_parsing_of_names():
    assert parse_cgroup("9:name=systemd:/\n4:hugetlb,memory:/a:b\n0::/c\n") == {
        1: PurePosixPath("/a:b"),
        2: PurePosixPath("/c"),
    }
    line = r"35 31 0:32 /x\040y /mnt/my\040groups rw shared:1 master:2 - cgroup2 none rw"
    mount = CgroupMount(2, PurePosixPath("/x y"), PurePosixPath("/mnt/my groups"))
    assert parse_mountinfo(line) == (mount,)
    assert parse_mountinfo(V1_OTHER) == ()


def test_ancestors_end_at_the_mount_point():
    mount = CgroupMount(2, PurePosixPath("/"), PurePosixPath("/cg"))
    assert [str(path) for path in visible_cgroups(PurePosixPath("/a/b"), mount)] == ["/cg/a/b", "/cg/a", "/cg"]
    inner = CgroupMount(2, PurePosixPath("/a"), PurePosixPath("/cg"))
    assert [str(path) for path in visible_cgroups(PurePosixPath("/a/b"), inner)] == ["/cg/b", "/cg"]
    for outside in ("/ab", "/../x"):
        assert visible_cgroups(PurePosixPath(outside), inner) == (PurePosixPath("/cg"),)


def test_old_kernels_tell_free_memory_only():
    assert parse_meminfo("MemTotal: 8 kB\nMemFree: 4 kB\n") == 4096
    with pytest.raises(DeviceError):
        parse_meminfo("MemTotal: 8 kB\n")


def test_other_systems_tell_their_pages(tmp_path, monkeypatch):
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 16384}
    monkeypatch.setattr(os, "sysconf_names", dict.fromkeys(pages, 0))
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert free_memory(tmp_path) == 1000 * 16384
    monkeypatch.setattr(os, "sysconf_names", {})
    with pytest.raises(DeviceError):
        free_memory(tmp_path)


def test_the_default_budget_leaves_a_fifth_and_what_the_process_needs(system):
    system.write("proc/meminfo", "MemAvailable: 1000 kB\n")
    assert default_budget(100_000, system.root) == (1000 * 1024 * 4 // 5 - 100_000) * 512 // 513
    assert largest_budget(100_000, system.root) == (1000 * 1024 - 100_000) * 512 // 513
    with pytest.raises(BudgetError) as caught:
        default_budget(1000 * 1024, system.root)
    assert f"{1000 * 1024 * 4 // 5} bytes" in caught.value.actual


def test_a_limit_is_used_whole_and_leaves_room_for_page_tables(system):
    system.process("0::/job\n", V2_MOUNT)
    system.v2("job", 513 * MIB, 100 * MIB)
    assert default_budget(100 * MIB, system.root) == 313 * MIB * 512 // 513
    assert default_budget(0, system.root) == largest_budget(0, system.root) == 413 * MIB * 512 // 513
    assert largest_budget(500 * MIB, system.root) == 0
    with pytest.raises(BudgetError, match=r"Raise the cgroup's limit by more than 87\.0 MiB"):
        default_budget(500 * MIB, system.root)


def test_this_machine():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_memory() <= total


def test_a_limit_set_by_the_kernel_is_seen_from_inside():
    code = "from bathyal.memory.process.available import free_memory; print(free_memory())"
    with memory_cgroup(256 * MIB) as group:
        done = run_inside(group, ["-c", code])
    assert done.returncode == 0, done.stderr
    assert 128 * MIB < int(done.stdout) < 256 * MIB


READING_AND_TAKING = """
import os, sys
from bathyal.memory.process.available import free_memory
path, size = sys.argv[1], 96 << 20
with open(path, "wb") as file:
    for _ in range(size >> 20):
        file.write(bytes(1 << 20))
    os.fsync(file.fileno())
before = free_memory()
for _ in range(3):
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
after = free_memory()
print(before, after, flush=True)
taken = bytearray(after - (12 << 20))  # What is said to be free can be had, and nobody is killed.
print(sum(taken[:: 1 << 20]))
"""


def test_files_that_are_read_over_and_over_stay_free_for_the_kernel_and_for_us(tmp_path):
    with memory_cgroup(256 * MIB) as group:
        done = run_inside(group, ["-c", READING_AND_TAKING, str(tmp_path / "data")])
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split()[:2])
    assert after > before - 8 * MIB > 128 * MIB
