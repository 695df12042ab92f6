import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bathyal.memory.allocator import HeapPool, HeapStatistics, replay
from bathyal.memory.errors import BudgetError, PlanError


class NaivePool:
    """The same policy on a list of live blocks, with everything found by looking at all of them."""

    def __init__(self, capacity, alignment):
        self.limit = math.inf if capacity is None else capacity // alignment * alignment
        self.alignment = alignment
        self.blocks = {}
        self.peak = self.high_water = self.allocations = 0

    def holes(self):
        holes, at = [], 0
        for first, end in sorted(self.blocks.values()):
            if first > at:
                holes.append((at, first))
            at = end
        return holes, at

    def allocate(self, name, nbytes, alignment=None):
        size = math.ceil(nbytes / self.alignment) * self.alignment
        holes, top = self.holes()

        def start(at):
            return math.ceil(at / (alignment or self.alignment)) * (alignment or self.alignment)

        fitting = sorted((end - first, first) for first, end in holes if end - start(first) >= size)
        address = start(fitting[0][1] if fitting else top)
        if address + size > self.limit:
            return None
        self.blocks[name] = (address, address + size)
        self.allocations += 1
        self.peak = max(self.peak, self.allocated())
        self.high_water = max(self.high_water, address + size)
        return address

    def allocated(self):
        return sum(end - first for first, end in self.blocks.values())

    def statistics(self):
        holes, top = self.holes()
        sizes = [end - first for first, end in holes]
        if self.limit != math.inf and self.limit > top:
            sizes.append(self.limit - top)
        return HeapStatistics(
            self.allocated(),
            self.peak,
            self.high_water,
            len(sizes),
            max(sizes, default=0),
            self.allocations,
            1 - max(sizes) / sum(sizes) if sizes else 0.0,
        )


@st.composite
def aligned_traces(draw, multiples=(1, 2, 8)):
    """Events that free only live blocks and use every id once; last, multiples of the pool's alignment."""
    live, trace = [], []
    for block_id in range(draw(st.integers(1, 60))):
        while live and draw(st.booleans()):
            trace.append(("free", live.pop(draw(st.integers(0, len(live) - 1)))))
        trace.append(("allocate", block_id, draw(st.integers(1, 700)), draw(st.sampled_from(multiples))))
        live.append(block_id)
    return trace


def traces():
    """The same where every block is aligned as the pool is."""
    return aligned_traces((1,)).map(lambda trace: [event[:3] for event in trace])


def run(pool, trace):
    """Run a trace; return the address of each block, None where it was refused."""
    addresses = {}
    for event in trace:
        if event[0] == "free":
            if addresses[event[1]] is not None:
                pool.free(event[1])
        else:
            try:
                addresses[event[1]] = pool.allocate(event[1], event[2])
            except BudgetError:
                addresses[event[1]] = None
    return addresses


@given(aligned_traces(), st.one_of(st.none(), st.integers(0, 6000)), st.sampled_from([1, 48, 64]))
def test_it_agrees_with_a_naive_model_at_every_event(trace, capacity, alignment):
    pool, model = HeapPool(capacity, alignment), NaivePool(capacity, alignment)
    for event in trace:
        if event[0] == "free":
            if model.blocks.pop(event[1], None) is None:
                with pytest.raises(PlanError):
                    pool.free(event[1])
            else:
                pool.free(event[1])
        else:
            _, name, nbytes, multiple = event
            expected = model.allocate(name, nbytes, multiple * alignment)
            if expected is None:
                with pytest.raises(BudgetError):
                    pool.allocate(name, nbytes, multiple * alignment)
            else:
                assert pool.allocate(name, nbytes, multiple * alignment) == expected
        assert pool.statistics == model.statistics()


@pytest.mark.parametrize("alignment", [-64, 0, 1, 32, 96])
def test_a_block_is_aligned_to_multiples_of_the_pools_alignment(alignment):
    with pytest.raises(PlanError, match="a multiple of 64"):
        HeapPool(None).allocate("a", 64, alignment)


@given(traces(), st.one_of(st.none(), st.integers(0, 6000)))
def test_live_blocks_never_overlap_and_lie_inside(trace, capacity):
    pool, live = HeapPool(capacity), {}
    for event in trace:
        if event[0] == "free":
            if live.pop(event[1], None) is not None:
                pool.free(event[1])
            continue
        try:
            address = pool.allocate(event[1], event[2])
        except BudgetError:
            continue
        assert address % 64 == 0
        assert pool.address(event[1]) == address
        end = address + event[2]
        assert address >= 0 and (capacity is None or end <= capacity)
        assert all(end <= first or last <= address for first, last in live.values())
        live[event[1]] = (address, end)


@given(traces(), st.integers(0, 6000))
def test_one_block_is_left_after_all_is_freed(trace, capacity):
    pool = HeapPool(capacity)
    addresses = run(pool, trace)
    freed = {event[1] for event in trace if event[0] == "free"}
    for block_id, address in addresses.items():
        if address is not None and block_id not in freed:
            pool.free(block_id)
    usable = capacity - capacity % 64
    now = pool.statistics
    assert (now.free_blocks, now.largest_free_bytes) == ((1, usable) if usable else (0, 0))
    assert now.fragmentation == 0
    assert now.allocated_bytes == 0
    pool.close()


@given(traces())
def test_what_was_placed_without_limit_runs_in_its_high_water_mark(trace):
    placed, bounded = HeapPool(None), HeapPool(replay(trace).high_water_bytes)
    assert run(placed, trace) == run(bounded, trace)
    assert replay(trace, placed.statistics.high_water_bytes).high_water_bytes == placed.statistics.high_water_bytes


def test_best_fit_takes_the_smallest_hole_and_the_lowest_of_equal_ones():
    pool = HeapPool(None)
    for name, nbytes in [("a", 192), ("-", 64), ("b", 128), ("--", 64), ("c", 128), ("---", 64)]:
        pool.allocate(name, nbytes)
    where = {name: pool.address(name) for name in "abc"}
    for name in "cab":
        pool.free(name)
    assert pool.allocate("x", 100) == where["b"]
    assert pool.allocate("y", 128) == where["c"]
    assert pool.allocate("z", 64) == where["a"]
    assert pool.statistics.fragmentation == 0


def test_a_block_joins_with_the_holes_on_both_sides():
    pool = HeapPool(64 * 4)
    for name in "abcd":
        pool.allocate(name, 64)
    pool.free("a")
    pool.free("c")
    assert pool.statistics.free_blocks == 2
    assert pool.statistics.fragmentation == 0.5
    pool.free("b")
    assert pool.statistics.free_blocks == 1
    assert pool.allocate("e", 192) == 0


def test_a_full_pool_says_what_is_free_and_the_largest_block():
    pool = HeapPool(64 * 4)
    for name in "abcd":
        pool.allocate(name, 64)
    pool.free("a")
    pool.free("c")
    with pytest.raises(BudgetError) as caught:
        pool.allocate("e", 65)
    assert "128 bytes" in caught.value.expected
    assert "128 B (128 bytes) free" in caught.value.actual
    assert "largest block 64 B" in caught.value.actual
    pool.allocate("e", 64)  # a refusal changes nothing


def test_wrong_use_is_refused():
    pool = HeapPool(1024)
    pool.allocate("a", 10)
    for wrong in (
        lambda: pool.allocate("a", 10),
        lambda: pool.allocate("b", 0),
        lambda: pool.allocate("b", -1),
        lambda: pool.free("b"),
        lambda: pool.address("b"),
        lambda: HeapPool(-1),
        lambda: HeapPool(10, 0),
    ):
        with pytest.raises(PlanError):
            wrong()
    pool.free("a")
    with pytest.raises(PlanError, match="freed before"):
        pool.free("a")
    pool.close()
    with pytest.raises(PlanError, match="closed"):
        pool.allocate("a", 1)


def test_leaks_are_named():
    pool = HeapPool(None)
    for index in range(8):
        pool.allocate(index, 64)
    with pytest.raises(PlanError) as caught:
        pool.close()
    assert "8 live, 512 bytes: 0 (64 bytes), 1 " in caught.value.actual
    assert "and 3 more" in caught.value.actual


def test_a_trace_is_replayed_also_from_json():
    trace = [["allocate", "a", 100], ["allocate", "b", 100], ["free", "a"], ["allocate", "c", 60]]
    assert replay(trace, alignment=64) == HeapStatistics(192, 256, 256, 1, 64, 3, 0.0)
    with pytest.raises(BudgetError):
        replay(trace, 255)
    for wrong in (("resize", "a", 1), ("allocate", "a"), ("allocate", "a", "1"), ()):
        with pytest.raises(PlanError, match="allocation trace"):
            replay([wrong])
