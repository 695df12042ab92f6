"""The race detector's memory: the last accesses to each byte, and whether the next access is ordered after them.

Vector clocks decide whether two accesses are ordered: an access is the `count`-th of its queue, and a clock says for
each queue how many of its accesses come before. `simulated.py` keeps one shadow for each memory that work touches.

Source: Lamport 1978; Flanagan and Freund 2009, "FastTrack" (last write and the reads since, instead of a history).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ..errors import DeviceError


class RaceError(DeviceError):
    """Two accesses to the same bytes, at least one a write, that nothing orders.

    Attributes:
        first: the label of the work that happened to run first.
        second: the label of the other.
        byte_range: the bytes concerned, `(first, end)`; addresses in the arena, in a tier, or of the machine.
    """

    def __init__(self, memory: str, first: str, second: str, byte_range: tuple[int, int]) -> None:
        self.first = first
        self.second = second
        self.byte_range = byte_range
        super().__init__(
            f"{memory} bytes [{byte_range[0]}, {byte_range[1]})",
            "conflicting accesses to be ordered by an event",
            f"{first!r} and {second!r} in any order",
            "The later queue must wait for an event that the earlier one records after its work.",
        )


@dataclass(frozen=True, slots=True)
class Access:
    """One access to some bytes.

    Attributes:
        queue: the number of the queue that made it.
        count: the number of its work in that queue, counted from 1.
        label: what the work was, for errors.
    """

    queue: int
    count: int
    label: str

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class _Cell:
    """The last write of some bytes and, for each queue, its last read since; neither is ever modified."""

    write: Access | None = None
    reads: tuple[Access, ...] = ()


_UNTOUCHED = _Cell()


class ShadowMemory:
    """What happened last to each byte, as a sorted map of disjoint ranges that covers all addresses.

    Its size is bounded by the distinct range ends in use, not by the number of accesses: a write joins its ranges.
    """

    def __init__(self, memory: str) -> None:
        self._memory = memory
        self._starts = [0]
        self._cells = [_UNTOUCHED]

    def __len__(self) -> int:
        return len(self._cells)

    def clear(self) -> None:
        """Forget all accesses, once every later access is ordered after every earlier one."""
        self._starts = [0]
        self._cells = [_UNTOUCHED]

    def read(self, first: int, end: int, access: Access, clock: list[int]) -> None:
        """Note a read of `[first, end)`; raises RaceError where a write of these bytes is not ordered before it."""
        low, high = self._split(first), self._split(end)
        for index in range(low, high):
            cell = self._cells[index]
            self._check(cell.write, access, clock, index, end)
            others = tuple(read for read in cell.reads if read.queue != access.queue)
            self._cells[index] = _Cell(cell.write, (*others, access))

    def write(self, first: int, end: int, access: Access, clock: list[int]) -> None:
        """Note a write of `[first, end)`; raises RaceError where an access to these bytes is not ordered before it."""
        low, high = self._split(first), self._split(end)
        for index in range(low, high):
            cell = self._cells[index]
            self._check(cell.write, access, clock, index, end)
            for read in cell.reads:
                self._check(read, access, clock, index, end)
        self._starts[low:high] = [first]
        self._cells[low:high] = [_Cell(access)]

    def _check(self, before: Access | None, access: Access, clock: list[int], index: int, end: int) -> None:
        if before is not None and before.count > clock[before.queue]:
            stop = self._starts[index + 1] if index + 1 < len(self._starts) else end
            raise RaceError(self._memory, str(before), str(access), (self._starts[index], stop))

    def _split(self, address: int) -> int:
        """Make a range start at `address` and return its index."""
        index = bisect_right(self._starts, address) - 1
        if self._starts[index] == address:
            return index
        self._starts.insert(index + 1, address)
        self._cells.insert(index + 1, self._cells[index])
        return index + 1
