"""The heap pool: it hands out addresses in a range of bytes, one request at a time, and touches none of the bytes.

One class, which knows integers alone, serves the planner, which places instances in a pool that grows as needed
(capacity None), and a run within a fixed capacity. A block goes to the smallest hole that it fits, to the lowest
address among equal holes, and to the end of the used range where it fits no hole. The unused end is never taken before
a hole, whatever its size, so that the capacity never changes an address: a trace that reached `high_water_bytes`
without limit runs in exactly that capacity, at the same addresses.

Holes are kept in two plain sorted lists, by address and by (size, address), searched by bisection: O(log n)
comparisons a call. Inserting moves the tail of a list in one memmove, 0.1 µs for a thousand holes, which no tree in
Python beats below some hundred thousand.

The pool does not check what a caller does with its addresses. Source: Knuth, TAOCP 1, 2.5 (best fit, coalescing);
Wilson et al. 1995, "Dynamic storage allocation: a survey and critical review" (wilderness preservation).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal, NoReturn

from .errors import BudgetError, PlanError
from .sizes import align_up, format_size_exact

BlockId = Hashable
TraceEvent = tuple[Literal["allocate"], BlockId, int] | tuple[Literal["free"], BlockId]

_LEAKS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class HeapStatistics:
    """What a heap pool holds and held; all sizes in bytes, after rounding up to the alignment.

    Attributes:
        allocated_bytes: in live blocks now.
        peak_bytes: the most that was in live blocks at one time.
        high_water_bytes: the highest end of a block so far; what the memory behind the pool must have.
        free_blocks: holes, and the unused end where the capacity is limited.
        largest_free_bytes: the largest of them.
        allocations: how many calls of `allocate` succeeded.
        fragmentation: 1 − largest_free_bytes / all free bytes; 0 where nothing is free.
    """

    allocated_bytes: int
    peak_bytes: int
    high_water_bytes: int
    free_blocks: int
    largest_free_bytes: int
    allocations: int
    fragmentation: float


class HeapPool:
    """A best-fit allocator of addresses with coalescing; O(log n) a call.

    Attributes:
        capacity_bytes: the size of the range, or None for no limit.
        alignment: addresses and sizes are multiples of it.
    """

    def __init__(self, capacity_bytes: int | None, alignment: int = 64) -> None:
        if alignment <= 0 or (capacity_bytes is not None and capacity_bytes < 0):
            raise PlanError(
                "heap pool",
                "a positive alignment and a capacity of at least 0 bytes",
                f"alignment {alignment}, capacity {capacity_bytes}",
            )
        self.capacity_bytes = capacity_bytes
        self.alignment = alignment
        self._limit = None if capacity_bytes is None else capacity_bytes - capacity_bytes % alignment
        self._blocks: dict[BlockId, tuple[int, int]] = {}  # id -> (address, size)
        self._hole_addresses: list[int] = []  # sorted
        self._hole_sizes: dict[int, int] = {}  # address -> size
        self._holes_by_size: list[tuple[int, int]] = []  # (size, address), sorted
        self._end = 0  # no live block and no hole lies above
        self._allocated_bytes = 0
        self._peak_bytes = 0
        self._high_water_bytes = 0
        self._allocations = 0
        self._closed = False

    def allocate(self, block_id: BlockId, nbytes: int, alignment: int | None = None) -> int:
        """Return the address of `nbytes`, rounded up to the pool's alignment, known as `block_id` until freed.

        Args:
            block_id: anything hashable that is not live.
            nbytes: at least 1.
            alignment: of this block's address, a multiple of the pool's; None for the pool's.

        Raises:
            BudgetError: no hole and no room at the end is large enough.
            PlanError: the id is live, the size is not positive, the pool is closed, or it cannot align so.
        """
        if self._closed or nbytes <= 0 or block_id in self._blocks:
            self._refuse(block_id, nbytes)
        size = -(-nbytes // self.alignment) * self.alignment
        if alignment is not None and alignment != self.alignment:
            return self._allocate_aligned(block_id, size, alignment)
        position = bisect_left(self._holes_by_size, (size, -1))
        if position < len(self._holes_by_size):
            hole_size, address = self._holes_by_size[position]
            self._remove_hole(address)
            if hole_size > size:
                self._insert_hole(address + size, hole_size - size)
        else:
            address = self._end
            if self._limit is not None and address + size > self._limit:
                self._raise_full(block_id, size)
            self._end = address + size
            self._high_water_bytes = max(self._high_water_bytes, self._end)
        return self._admit(block_id, address, size)

    def _allocate_aligned(self, block_id: BlockId, size: int, alignment: int) -> int:
        """Take the smallest hole that has `size` bytes at a multiple of `alignment`, else the end of the used range.

        The bytes that the alignment skips become a hole.
        """
        if alignment <= 0 or alignment % self.alignment:
            raise PlanError(
                f"heap pool, block {block_id!r}", f"an alignment that is a multiple of {self.alignment}", str(alignment)
            )
        for hole_size, hole in self._holes_by_size[bisect_left(self._holes_by_size, (size, -1)) :]:
            address = align_up(hole, alignment)
            after = hole + hole_size - address - size
            if after >= 0:
                self._remove_hole(hole)
                if after:
                    self._insert_hole(address + size, after)
                if address > hole:
                    self._insert_hole(hole, address - hole)
                return self._admit(block_id, address, size)
        address = -(-self._end // alignment) * alignment
        if self._limit is not None and address + size > self._limit:
            self._raise_full(block_id, size)
        if address > self._end:
            self._insert_hole(self._end, address - self._end)
        self._end = address + size
        self._high_water_bytes = max(self._high_water_bytes, self._end)
        return self._admit(block_id, address, size)

    def _admit(self, block_id: BlockId, address: int, size: int) -> int:
        """Count a block as live; return its address."""
        self._blocks[block_id] = (address, size)
        self._allocations += 1
        self._allocated_bytes += size
        self._peak_bytes = max(self._peak_bytes, self._allocated_bytes)
        return address

    def free(self, block_id: BlockId) -> None:
        """Give the block back and join it with the holes beside it; raises PlanError where the id is not live."""
        block = self._blocks.pop(block_id, None)
        if block is None:
            raise PlanError(f"heap pool, block {block_id!r}", "a live block", "one freed before, or never allocated")
        first, size = block
        self._allocated_bytes -= size
        end = first + size
        position = bisect_left(self._hole_addresses, first)
        if position < len(self._hole_addresses) and self._hole_addresses[position] == end:
            end += self._remove_hole(end)
        if position > 0:
            below = self._hole_addresses[position - 1]
            if below + self._hole_sizes[below] == first:
                self._remove_hole(below)
                first = below
        if end == self._end:
            self._end = first
        else:
            self._insert_hole(first, end - first)

    def address(self, block_id: BlockId) -> int:
        """Return the address of a live block; raises PlanError where the id is not live."""
        if block_id not in self._blocks:
            raise PlanError(f"heap pool, block {block_id!r}", "a live block", "one freed before, or never allocated")
        return self._blocks[block_id][0]

    @property
    def statistics(self) -> HeapStatistics:
        """Count what the pool holds now."""
        tail = 0 if self._limit is None else self._limit - self._end
        free_bytes = self._end - self._allocated_bytes + tail
        largest = max(tail, self._holes_by_size[-1][0] if self._holes_by_size else 0)
        return HeapStatistics(
            allocated_bytes=self._allocated_bytes,
            peak_bytes=self._peak_bytes,
            high_water_bytes=self._high_water_bytes,
            free_blocks=len(self._hole_addresses) + (tail > 0),
            largest_free_bytes=largest,
            allocations=self._allocations,
            fragmentation=1 - largest / free_bytes if free_bytes else 0.0,
        )

    def check_leaks(self) -> None:
        """Raise PlanError, naming the first few, where blocks are still live."""
        if self._blocks:
            shown = [f"{name!r} ({size} bytes)" for name, (_, size) in list(self._blocks.items())[:_LEAKS_SHOWN]]
            more = len(self._blocks) - len(shown)
            raise PlanError(
                "heap pool",
                "every block freed at the end",
                f"{len(self._blocks)} live, {self._allocated_bytes} bytes: {', '.join(shown)}"
                + (f" and {more} more" if more else ""),
            )

    def close(self) -> None:
        """End the pool, after which nothing can be allocated; raises PlanError where blocks are still live."""
        self._closed = True
        self.check_leaks()

    def _insert_hole(self, address: int, size: int) -> None:
        insort(self._hole_addresses, address)
        insort(self._holes_by_size, (size, address))
        self._hole_sizes[address] = size

    def _remove_hole(self, address: int) -> int:
        size = self._hole_sizes.pop(address)
        del self._hole_addresses[bisect_left(self._hole_addresses, address)]
        del self._holes_by_size[bisect_left(self._holes_by_size, (size, address))]
        return size

    def _refuse(self, block_id: BlockId, nbytes: int) -> NoReturn:
        where = f"heap pool, block {block_id!r}"
        if self._closed:
            raise PlanError(where, "an open pool", "a closed one")
        if nbytes <= 0:
            raise PlanError(where, "a positive number of bytes", str(nbytes))
        raise PlanError(where, "an id that is not live", "one that is", "Free it first.")

    def _raise_full(self, block_id: BlockId, size: int) -> NoReturn:
        assert self._limit is not None
        now = self.statistics
        raise BudgetError(
            f"heap pool, block {block_id!r}",
            f"a free block of {format_size_exact(size)}",
            f"{format_size_exact(self._limit - self._allocated_bytes)} free, "
            f"the largest block {format_size_exact(now.largest_free_bytes)}",
            "Planned placement packs tighter than a heap." if now.fragmentation else "",
        )


def replay(trace: Iterable[TraceEvent], capacity_bytes: int | None = None, alignment: int = 64) -> HeapStatistics:
    """Run a trace of `("allocate", id, nbytes)` and `("free", id)` through a fresh pool; return its last statistics.

    It is public for whoever wants to know what memory a heap would need where a plan places tensors itself.

    Raises:
        BudgetError: the trace does not fit `capacity_bytes`.
        PlanError: an event is malformed, frees twice, or allocates a live id.
    """
    pool = HeapPool(capacity_bytes, alignment)
    for event in trace:
        match event:
            case ("allocate", block_id, int(nbytes)):
                pool.allocate(block_id, nbytes)
            case ("free", block_id):
                pool.free(block_id)
            case _:
                raise PlanError("allocation trace", '("allocate", id, nbytes) or ("free", id)', repr(event))
    return pool.statistics
