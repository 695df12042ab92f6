"""Data in a file: what comes back, what is refused, what is left behind (nothing), and what it costs in memory."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bathyal.memory.arena import Arena
from bathyal.memory.errors import BudgetError, ConfigError, DeviceError, PlanError
from bathyal.memory.tiers.disk import DiskTier
from bathyal.memory.tiers.file_lane import PIECE_BYTES, WINDOW_BYTES
from bathyal.memory.tiers.spill_folder import default_spill_folder
from tests.support.memory_limit import memory_cgroup, run_inside
from tests.support.small_file_systems import mount_ext4, mount_overlay, mount_tmpfs

MIB = 2**20
SIZE = 4 * MIB
PAGE = 4096

CHILD = Path(__file__).parents[2] / "support" / "spilling_process.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder on a disk, whatever pytest's own is on."""
    return tmp_path_factory.mktemp("spill", numbered=True)


@pytest.fixture(params=[True, False], ids=["direct", "cached"])
def try_direct(request):
    return request.param


@pytest.fixture
def tier(folder, try_direct):
    with DiskTier(folder, SIZE, try_direct=try_direct) as tier:
        if tier.direct != try_direct:
            pytest.skip("this file system has no O_DIRECT")
        yield tier


@pytest.fixture
def arena():
    with Arena(SIZE + PAGE) as arena:
        arena.memory[:] = np.random.default_rng(0).integers(0, 256, SIZE + PAGE, np.uint8)
        yield arena


def handles():
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_round_trip(tier, arena, address, first, nbytes):
    source = arena.view(first, nbytes)
    expected = source.copy()
    tier.write(address, source)
    source[:] = 0
    tier.read(address, source)
    assert (source == expected).all()


@pytest.mark.parametrize("nbytes", [0, 1, 100, PAGE, PAGE + 1, PIECE_BYTES, 3 * PIECE_BYTES + 5, SIZE])
@pytest.mark.parametrize("first", [0, 64])
def test_bytes_come_back_from_aligned_and_other_memory(tier, arena, nbytes, first):
    check_round_trip(tier, arena, SIZE - -(-nbytes // PAGE) * PAGE, first, nbytes)


def test_a_transfer_of_several_windows(folder, try_direct):
    nbytes = 2 * WINDOW_BYTES + 3 * PIECE_BYTES + 10
    with Arena(nbytes) as arena, DiskTier(folder, nbytes, try_direct=try_direct) as tier:
        arena.memory[:] = np.arange(nbytes, dtype=np.uint32).view(np.uint8)[:nbytes]
        check_round_trip(tier, arena, 0, 0, nbytes)


@st.composite
def writes(draw):
    """Overlapping writes of any length, from anywhere in memory, to pages of a small tier."""
    page = draw(st.integers(0, 15))
    nbytes = draw(st.integers(0, (16 - page) * PAGE))
    return page * PAGE, draw(st.sampled_from([0, 1, 64, PAGE])), nbytes, draw(st.integers(0, 255))


@pytest.fixture(scope="module", params=[True, False], ids=["direct", "cached"])
def small_tier(request, folder):
    with DiskTier(folder, 16 * PAGE, try_direct=request.param) as tier:
        yield tier


@settings(max_examples=50, deadline=None)
@given(moves=st.lists(writes(), max_size=6))
def test_a_write_changes_its_own_bytes_and_no_others(small_tier, moves):
    """The oracle: an array in memory."""
    with Arena(18 * PAGE) as arena:
        expected = np.zeros(16 * PAGE, np.uint8)
        small_tier.write(0, expected)
        for address, first, nbytes, byte in moves:
            source = arena.view(first, nbytes)
            source[:] = byte
            expected[address : address + nbytes] = byte
            small_tier.write(address, source)
        for first in (0, 64):
            target = arena.view(first, 16 * PAGE)
            target[:] = 1
            small_tier.read(0, target)
            assert (target == expected).all()


@pytest.mark.parametrize(("address", "nbytes"), [(-PAGE, 1), (0, SIZE + 1), (SIZE, 1), (64, 64), (2**62, 1)])
def test_ranges_outside_or_between_pages_are_refused(tier, address, nbytes):
    for move in (tier.write, tier.read):
        with pytest.raises(PlanError, match="tier 'disk'"):
            move(address, np.zeros(nbytes, np.uint8))


def test_both_directions_at_once(tier, arena):
    """One thread writes the first half over and over, another reads the second: the halves stay apart."""
    half = SIZE // 2
    lower, upper = arena.view(0, half), arena.view(half, half)
    expected = upper.copy()
    tier.write(half, upper)
    failures = []

    def repeat(move, *arguments):
        try:
            for _ in range(20):
                move(*arguments)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=repeat, args=(tier.write, 0, lower)),
        threading.Thread(target=repeat, args=(tier.read, half, upper)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (upper == expected).all()
    before = lower.copy()
    tier.read(0, lower)
    assert (lower == before).all()


def test_two_tiers_in_one_folder_do_not_meet(folder, arena, try_direct):
    with DiskTier(folder, SIZE, try_direct=try_direct) as one, DiskTier(folder, SIZE, try_direct=try_direct) as other:
        one.write(0, arena.view(0, PAGE))
        other.write(0, arena.view(PAGE, PAGE))
        for tier, first in ((one, 0), (other, PAGE)):
            target = np.empty(PAGE, np.uint8)
            tier.read(0, target)
            assert (target == arena.view(first, PAGE)).all()
        assert list(folder.iterdir()) == []


def test_a_thousand_transfers_take_no_memory_and_no_handles(tier, arena):
    """Two threads and pieces of every kind: aligned, not aligned, with a last block that is not full."""
    sizes = [4 * PAGE, 4 * PAGE + 7, 2 * PIECE_BYTES]

    def transfers(count):
        for index in range(count):
            nbytes = sizes[index % 3] if index % 20 == 0 else sizes[index % 2]
            view = arena.view(64 * (index % 2), nbytes)
            tier.write(0, view)
            tier.read(0, view)

    transfers(40)
    memory, open_before = resident_bytes(), handles()
    transfers(500)
    assert handles() == open_before
    assert resident_bytes() - memory < MIB


def test_closing_gives_the_handle_and_the_threads_back(folder, try_direct):
    handles_before, threads_before = handles(), threading.active_count()
    tier = DiskTier(folder, SIZE, try_direct=try_direct)
    tier.write(0, np.zeros(SIZE, np.uint8))
    tier.close()
    tier.close()
    assert (handles(), threading.active_count()) == (handles_before, threads_before)
    with pytest.raises(PlanError, match="closed"):
        tier.write(0, np.zeros(PAGE, np.uint8))


def test_closing_waits_for_the_transfer_under_way(folder, try_direct, monkeypatch):
    """Else the number of the file could belong to another one by the time that bytes are written to it."""
    pwrite, reached, gate, events = os.pwrite, threading.Event(), threading.Event(), []

    def held(descriptor, data, offset):
        reached.set()
        gate.wait(20)
        events.append("written")
        return pwrite(descriptor, data, offset)

    tier = DiskTier(folder, SIZE, try_direct=try_direct)
    monkeypatch.setattr(os, "pwrite", held)
    writer = threading.Thread(target=tier.write, args=(0, np.zeros(PAGE, np.uint8)))
    writer.start()
    reached.wait(20)
    closer = threading.Thread(target=lambda: (tier.close(), events.append("closed")))
    closer.start()
    closer.join(0.05)
    gate.set()
    closer.join()
    writer.join()
    assert events == ["written", "closed"]


def test_it_says_what_it_takes_beside_the_arena(tier):
    assert tier.staging_bytes == (2 * PIECE_BYTES if tier.direct else 2 * WINDOW_BYTES)


def test_a_file_system_without_o_direct_is_used_through_the_cache(folder, arena, monkeypatch):
    pwrite, refused = os.pwrite, []

    def refuse(descriptor, data, offset):
        if not refused:
            refused.append(offset)
            raise OSError(errno.EINVAL, "Invalid argument")
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse)
    with DiskTier(folder, SIZE) as tier:
        assert not tier.direct
        check_round_trip(tier, arena, 0, 64, 2 * PAGE + 1)


def test_a_file_system_without_nameless_files_is_used_too(folder, arena, monkeypatch):
    opening, names = os.open, []

    def refuse(path, flags, *arguments, **options):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        names.append(path)
        return opening(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with DiskTier(folder, SIZE) as tier, DiskTier(folder, SIZE):
        assert len(set(names)) == 2
        assert list(folder.iterdir()) == []
        check_round_trip(tier, arena, 0, 0, SIZE)


def test_a_limit_is_kept_and_both_figures_told(folder):
    with pytest.raises(BudgetError, match="--spill-size") as caught:
        DiskTier(folder, 2 * MIB, limit=MIB)
    assert str(MIB) in caught.value.expected
    assert str(2 * MIB) in caught.value.actual
    DiskTier(folder, MIB, limit=MIB).close()
    with pytest.raises(BudgetError, match="at least one byte"):
        DiskTier(folder, 0)


def test_it_grows_and_keeps_what_is_there(folder, arena, try_direct):
    with DiskTier(folder, 8 * PAGE, limit=32 * PAGE, try_direct=try_direct) as tier:
        tier.write(0, arena.view(0, 8 * PAGE))
        tier.grow(PAGE)  # it is larger already
        assert tier.nbytes == 8 * PAGE
        with pytest.raises(PlanError):
            tier.write(8 * PAGE, arena.view(0, PAGE))
        tier.grow(32 * PAGE)
        tier.write(31 * PAGE, arena.view(8 * PAGE, PAGE))
        with pytest.raises(BudgetError, match=r"at most .*spill-size.*, got a plan that needs"):
            tier.grow(32 * PAGE + 1)
        assert tier.nbytes == 32 * PAGE
        found = np.zeros(9 * PAGE, np.uint8)
        tier.read(0, found[: 8 * PAGE])
        tier.read(31 * PAGE, found[8 * PAGE :])
        assert (found == arena.memory[: 9 * PAGE]).all()


def test_a_full_disk_is_refused_before_the_first_transfer_and_left_as_it_was(tmp_path):
    with mount_ext4(tmp_path, 8 * MIB) as mount:
        before, handles_before = os.statvfs(mount), handles()
        with pytest.raises(BudgetError, match="--spill-size") as caught:
            DiskTier(mount, 64 * MIB)
        assert str(64 * MIB) in caught.value.expected
        assert str(before.f_bfree * before.f_frsize) in caught.value.actual
        assert os.statvfs(mount).f_bfree == before.f_bfree
        assert handles() == handles_before
        with DiskTier(mount, 2 * MIB) as tier:  # a small one fits, and its room comes back
            assert os.statvfs(mount).f_bfree < before.f_bfree
            tier.write(0, np.ones(2 * MIB, np.uint8))
        assert os.statvfs(mount).f_bfree == before.f_bfree


def test_a_file_system_in_memory_is_refused(tmp_path):
    with mount_tmpfs(tmp_path, 8 * MIB) as mount, pytest.raises(ConfigError, match="--spill-dir"):
        DiskTier(mount, MIB)


def test_an_overlay_works(tmp_path, arena):
    with mount_overlay(tmp_path) as mount, DiskTier(mount, SIZE) as tier:
        check_round_trip(tier, arena, 0, 0, SIZE)


def test_a_limit_on_file_sizes_is_a_full_disk(folder):
    code = (
        "import resource, sys; from pathlib import Path; from bathyal.memory.tiers.disk import DiskTier;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20)); DiskTier(Path(sys.argv[1]), 2**22)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert "BudgetError" in done.stderr
    assert "File too large" in done.stderr


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOENT])
def test_a_folder_that_turns_bad_between_check_and_opening_is_a_wrong_option(folder, monkeypatch, code):
    def refuse(path, *arguments, **options):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=errno.errorcode[code]) as caught:
        DiskTier(folder, MIB)
    assert str(folder) in caught.value.where
    assert "--spill-dir" in caught.value.hint


def test_a_folder_that_vanishes_in_mid_run_takes_nothing_away(tmp_path, arena):
    folder = tmp_path / "gone"
    folder.mkdir()
    with DiskTier(folder, SIZE) as tier:
        folder.rmdir()
        check_round_trip(tier, arena, 0, 0, SIZE)


@pytest.mark.parametrize("blocks", [1, 3])
def test_short_transfers_are_continued(tier, arena, monkeypatch, blocks):
    """The kernel may move less than asked; with O_DIRECT it stops at a block."""
    pwrite, preadv, calls = os.pwrite, os.preadv, []
    least = blocks * PAGE if tier.direct else blocks * 1000

    def write_less(descriptor, data, offset):
        calls.append(offset)
        return pwrite(descriptor, data[:least], offset)

    def read_less(descriptor, buffers, offset):
        return preadv(descriptor, [buffers[0][:least]], offset)

    monkeypatch.setattr(os, "pwrite", write_less)
    monkeypatch.setattr(os, "preadv", read_less)
    check_round_trip(tier, arena, 0, 0, 64 * PAGE)
    check_round_trip(tier, arena, 0, 64, 64 * PAGE + 10)
    assert len(calls) >= 2 * 64 // (blocks + 1)


def test_a_short_direct_transfer_goes_on_from_a_whole_block(folder, arena, monkeypatch):
    """Where a disk of 512-byte blocks stops inside a page, the page is moved again, for the address must be aligned."""
    pwrite, offsets = os.pwrite, []

    def write_less(descriptor, data, offset):
        offsets.append(offset)
        return pwrite(descriptor, data[: PAGE + 512], offset)

    with DiskTier(folder, SIZE) as tier:
        if not tier.direct:
            pytest.skip("this file system has no O_DIRECT")
        monkeypatch.setattr(os, "pwrite", write_less)
        check_round_trip(tier, arena, 0, 0, 16 * PAGE)
    assert offsets == list(range(0, 16 * PAGE, PAGE))


def test_transfers_that_move_nothing_are_an_error_that_says_how_much_was_left(tier, arena, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *arguments: 0)
    monkeypatch.setattr(os, "preadv", lambda *arguments: 0)
    for move in (tier.write, tier.read):
        with pytest.raises(DeviceError, match="spill file in") as caught:
            move(PAGE, arena.view(0, 2 * PAGE))
        assert f"{2 * PAGE} bytes" in caught.value.expected
        assert caught.value.actual == "0 bytes"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("failing", [0, 3])
def test_an_error_of_the_disk_is_raised_when_no_piece_is_under_way(tier, arena, monkeypatch, code, failing):
    pwrite, running = os.pwrite, []

    def fail(descriptor, data, offset):
        running.append(offset)
        try:
            if offset == failing * PIECE_BYTES:
                raise OSError(code, os.strerror(code))
            time.sleep(0.01)  # so that the error comes while others are under way
            return pwrite(descriptor, data, offset)
        finally:
            running.remove(offset)

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(DeviceError, match=errno.errorcode[code]) as caught:
        tier.write(0, arena.view(0, SIZE))
    assert running == []
    assert f"{PIECE_BYTES} bytes" in caught.value.expected
    assert caught.value.hint
    monkeypatch.undo()
    check_round_trip(tier, arena, 0, 0, SIZE)


def test_an_error_of_the_flush_is_raised(folder, arena, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with DiskTier(folder, SIZE, try_direct=False) as tier, pytest.raises(DeviceError, match="EIO"):
        tier.write(0, arena.view(0, PAGE))


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (signal.SIGINT, "named"),
        (signal.SIGTERM, "nameless"),
        (signal.SIGKILL, "nameless"),
        (signal.SIGKILL, "named"),
    ],
)
def test_a_process_that_ends_in_the_middle_of_transfers_leaves_nothing(tmp_path, ending, kind):
    arguments = [sys.executable, str(CHILD), str(tmp_path), str(4 * SIZE), "forever", kind]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "moving\n", child.stderr.read()
        child.send_signal(ending)
        child.communicate(timeout=60)
    assert child.returncode in (-ending, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["nameless", "cached"])
def test_a_memory_limit_does_not_count_the_disk(folder, kind):
    """512 MiB go out and come back through a tier of 1 GiB within 64 MiB more than the idle process takes."""
    if os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < 2 * 2**30:
        pytest.skip("needs 2 GiB of disk")
    arguments = [str(CHILD), str(folder), str(2**30)]
    with memory_cgroup(2**30) as group:
        idle = run_inside(group, [*arguments, "0", kind])
        assert idle.returncode == 0, idle.stderr
        base = group.peak_bytes()
    assert base is not None
    with memory_cgroup(base + 64 * MIB) as group:
        done = run_inside(group, [*arguments, "512", kind])
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == "correct"
        assert group.kills() == 0
        peak = group.peak_bytes()
    # The bounce buffers and the cache that are announced, the threads' stacks, and what a second run may differ by.
    assert peak - base <= (2 * PIECE_BYTES if kind == "nameless" else 2 * WINDOW_BYTES) + 8 * MIB


def test_the_default_folder_holds_a_tier():
    try:
        folder = default_spill_folder()
    except ConfigError as error:
        pytest.skip(f"no folder on a disk here: {error}")
    DiskTier(folder, PAGE).close()
