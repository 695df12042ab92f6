"""The stand-in for a GPU finds the faults that it is there to find."""

import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bathyal.engine.backends.cuda.kernel_program import KernelCall, KernelProgram, pointers
from bathyal.engine.backends.cuda.kernel_programs import FOLDER, SOURCES, source_text
from tests.support.cuda_on_cpu import FAULTY, KernelError, cuda_on_cpu


def floats(count):
    """Memory that begins at a multiple of 64 bytes."""
    room = np.zeros(count + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    return room[start : start + count]


def run(function, memory, *scalars, addresses=(0,), threads=64, blocks=1, **options):
    call = KernelCall(function, blocks, threads, pointers(*range(len(addresses))), scalars)
    cuda_on_cpu(FAULTY).run(KernelProgram((call,)), memory.view(np.uint8), addresses, **options)


def reversed_by(function, falling):
    memory = floats(128)
    memory[:64] = np.arange(64)
    run(function, memory, addresses=(0, 256), falling=falling)
    return memory[64:]


def test_a_missing_barrier_shows_in_the_order_of_threads():
    assert not np.array_equal(reversed_by("racy_reverse", False), reversed_by("racy_reverse", True))


def test_with_the_barrier_both_orders_agree():
    for falling in (False, True):
        np.testing.assert_array_equal(reversed_by("sound_reverse", falling), np.arange(63, -1, -1))


def test_fibers_go_on_in_whichever_thread_launches():
    with ThreadPoolExecutor(2) as pool:
        for made in pool.map(reversed_by, ["sound_reverse"] * 20, [False, True] * 10):
            np.testing.assert_array_equal(made, np.arange(63, -1, -1))


def test_blocks_that_write_one_element_show_in_the_order_of_blocks():
    last = []
    for falling in (False, True):
        memory = floats(1)
        run("racy_blocks", memory, blocks=4, whole_grid=True, falling=falling)
        last.append(memory[0])
    assert last == [3, 0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("left_barrier", "threads part at a barrier: thread 0 is at line .*, thread 40 has left"),
        ("two_barriers", "threads part at a barrier: thread 0 is at line .*, thread 1 at line"),
        ("parted_shuffle", "threads part at a shuffle"),
        ("undeclared_barrier", "threads meet in a kernel that is not cooperative"),
    ],
)
def test_threads_that_part_are_reported(function, message):
    memory = floats(64)
    for _ in range(2):  # a fault leaves nothing behind that the next launch would meet
        with pytest.raises(KernelError, match=message):
            run(function, memory)
        np.testing.assert_array_equal(reversed_by("sound_reverse", False), np.arange(63, -1, -1))


def test_shared_memory_begins_as_nan():
    memory = floats(64)
    reversed_by("sound_reverse", False)
    run("unwritten", memory)
    assert np.isnan(memory).all()


def test_a_write_behind_the_end_is_there_to_be_seen():
    memory = floats(9)
    memory[:] = 7
    run("one_too_many", memory, np.int64(8))
    assert memory[8] == 0


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(KernelError, match="one_too_many takes pl, not pi"):
        run("one_too_many", floats(9), np.int32(8))
    with pytest.raises(KernelError, match="one_too_many takes pl, not p"):
        run("one_too_many", floats(9))


def test_every_source_is_listed():
    assert sorted(p.name for p in FOLDER.iterdir()) == sorted([*SOURCES, "prelude.cuh"])
    assert "#include" not in source_text()


def test_indices_go_beyond_two_to_the_31_elements():
    """Two rows of two far pixels of an image of 2.4 · 10⁹ elements, of which no more than these are ever touched."""
    width, channels = 300_000_000, 4
    elements = 2 * width * channels
    no_reserve = 0x4000  # MAP_NORESERVE on Linux
    try:
        mapped = mmap.mmap(-1, 4 * elements + 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    except OSError as error:
        pytest.skip(f"10 GB of address space are not to be had: {error}")
    memory = np.frombuffer(mapped, np.uint8)
    image = memory[: 4 * elements].view(np.float32).reshape(2, width, channels)
    image[:, [0, -1]] = np.arange(16).reshape(2, 2, channels) + 1
    window = (channels, 2, width, 2, 2, 1, 1, 1, width - 1, 0, 0)
    scalars = (np.int64(4), *(np.int32(size) for size in window))
    call = KernelCall("max_pool_uint8_4", 1, 256, pointers(0, 1, 2), scalars)
    cuda_on_cpu().run(KernelProgram((call,)), memory, (0, 4 * elements, 4 * elements + 64), whole_grid=True)
    made = memory[4 * elements : 4 * elements + 64].view(np.float32)
    np.testing.assert_array_equal(made, np.arange(16) + 1)
    del image, made, memory
    mapped.close()
