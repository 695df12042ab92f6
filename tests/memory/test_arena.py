import mmap
from pathlib import Path

import numpy as np
import pytest

from bathyal.memory.arena import Arena
from bathyal.memory.errors import BudgetError, PlanError

MIB = 2**20


def test_it_starts_on_a_page_holds_zeros_and_has_its_size():
    with Arena(3 * 4096 + 5) as arena:
        assert arena.base % 4096 == 0
        assert arena.base == arena.memory.__array_interface__["data"][0]
        assert arena.memory.shape == (3 * 4096 + 5,)
        assert not arena.memory.any()


def test_views_share_the_bytes():
    with Arena(4096) as arena:
        view = arena.view(64, 16)
        own = np.ndarray((2, 2), np.float32, buffer=arena.memory, offset=64)
        own[:] = [[1, 2], [3, 4]]
        assert view.view(np.float32).tolist() == [1, 2, 3, 4]
        assert view.nbytes == 16


def test_the_high_water_mark_is_the_highest_end():
    with Arena(4096) as arena:
        assert arena.high_water_bytes == 0
        arena.view(1024, 100)
        arena.claim(0, 64)
        assert arena.high_water_bytes == 1124
        arena.claim(4096, 0)  # no bytes, no mark
        assert arena.high_water_bytes == 1124
        arena.poison(0xFF, 2048, 2048)
        assert arena.high_water_bytes == 1124
        arena.claim(4000, 96)
        assert arena.high_water_bytes == 4096
        arena.reset_high_water()
        assert arena.high_water_bytes == 0


@pytest.mark.parametrize(("address", "nbytes"), [(-1, 4), (0, 4097), (4096, 1), (100, -4), (2**62, 1)])
def test_ranges_outside_are_refused_with_numbers(address, nbytes):
    with Arena(4096) as arena:
        for use in (arena.view, arena.claim, lambda *where: arena.poison(0, *where)):
            with pytest.raises(PlanError) as caught:
                use(address, nbytes)
            assert "4096" in caught.value.expected
            assert str(address) in caught.value.actual
        assert arena.high_water_bytes == 0


def test_poison_fills_only_its_range():
    with Arena(4096) as arena:
        arena.poison(0xA5, 10, 20)
        assert (arena.memory[10:30] == 0xA5).all()
        assert np.count_nonzero(arena.memory) == 20


def test_closing_gives_back_and_may_be_repeated():
    arena = Arena(4096)
    view = arena.view(0, 8)
    view[:] = 7
    arena.close()
    arena.close()
    assert arena.closed
    assert not view.any()  # still mapped, for the view's sake, but given back
    with pytest.raises(PlanError, match="closed"):
        arena.view(0, 8)
    with pytest.raises(PlanError, match="closed"):
        arena.commit(8)


def test_committing_keeps_the_contents_and_asks_before_each_slice():
    asked = []

    def free():
        asked.append(arena.committed_bytes)
        return 2**40

    with Arena(150 * MIB + 17) as arena:
        arena.memory[::MIB] = 9
        before = arena.memory.copy()
        arena.commit(100, free)
        arena.commit(free=free)
        assert arena.committed_bytes == arena.nbytes
        assert asked == [0, 0, 100, 100, 64 * MIB + 100, 128 * MIB + 100]
        assert np.array_equal(arena.memory, before)
        arena.commit(free=lambda: 0)  # nothing is left to touch
        assert arena.high_water_bytes == 0


def test_committing_makes_the_pages_resident():
    def resident_bytes():
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4096

    try:
        before = resident_bytes()
    except OSError:
        pytest.skip("no /proc/self/statm on this system")
    with Arena(64 * MIB) as arena:
        arena.commit()
        assert resident_bytes() - before > 60 * MIB
    assert resident_bytes() - before < 30 * MIB


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without advice on huge pages")
def test_huge_pages_are_advised_before_anything_is_touched():
    with Arena(16 * MIB) as arena:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        inside = False
        for line in lines:
            first = line.split()[0]
            if "-" in first:
                begin, end = (int(part, 16) for part in first.split("-"))
                inside = begin <= arena.base < end
            elif inside and first == "VmFlags:":
                assert "hg" in line.split()
                return
    pytest.skip("the system does not say what was advised")


def test_more_than_is_free_is_refused_before_anything_is_touched():
    with Arena(10 * MIB) as arena:
        with pytest.raises(BudgetError) as caught:
            arena.commit(free=lambda: 3 * MIB)
        assert arena.committed_bytes == 0
        assert str(10 * MIB) in caught.value.expected
        assert str(3 * MIB) in caught.value.actual
        assert caught.value.hint


def test_memory_that_others_take_meanwhile_is_noticed():
    answers = iter([500 * MIB, 500 * MIB, 10 * MIB])
    with Arena(200 * MIB) as arena:
        with pytest.raises(BudgetError) as caught:
            arena.commit(free=lambda: next(answers))
        assert arena.committed_bytes == 64 * MIB
        assert str(64 * MIB) in caught.value.actual


@pytest.mark.parametrize("nbytes", [0, -1, 2**62, 2**70])
def test_sizes_that_cannot_be_mapped(nbytes):
    with pytest.raises(BudgetError):
        Arena(nbytes)
