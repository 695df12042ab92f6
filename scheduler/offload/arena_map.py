"""What lies where in a stretch of the arena at one moment, and where there is room.

The stretch is cut into spans: blocks, each with an owner, and holes between them that never touch each other.
Decides nothing but which hole is the tightest.
"""

from __future__ import annotations

from bisect import bisect_left, insort

HOLE = -1
"""Stands for the owner of a span that is a hole."""


class ArenaMap:
    """Blocks and holes from `first` to `end`.

    Args:
        first: address of the first byte.
        end: address after the last byte.
    """

    def __init__(self, first: int, end: int) -> None:
        self._starts = [first]
        self._spans = {first: (end, HOLE)}
        self._start_of = {end: first}
        self._holes = [(end - first, first)] if end > first else []
        self._at: dict[int, int] = {}

    def __contains__(self, owner: int) -> bool:
        return owner in self._at

    def address(self, owner: int) -> int:
        """Return the address at which a block begins."""
        return self._at[owner]

    def find_span(self, start: int) -> tuple[int, int]:
        """Return end and owner of the span that begins at `start`."""
        return self._spans[start]

    def find_before(self, start: int) -> int | None:
        """Return where the span before the one at `start` begins; None where there is none."""
        return self._start_of.get(start)

    def find_after(self, start: int) -> int | None:
        """Return where the span after the one at `start` begins; None where there is none."""
        end = self._spans[start][0]
        return end if end in self._spans else None

    def find_tightest(self, nbytes: int) -> int | None:
        """Return where the smallest hole of at least so many bytes begins; of equally small ones the lowest."""
        place = bisect_left(self._holes, (nbytes, -1))
        return self._holes[place][1] if place < len(self._holes) else None

    def put(self, owner: int, address: int, nbytes: int) -> None:
        """Make a block in the hole that begins at or before `address` and reaches as far."""
        start = self._starts[bisect_left(self._starts, address + 1) - 1]
        end, held = self._spans[start]
        assert held == HOLE and address + nbytes <= end, "a block lies in a hole"
        self._drop_hole(start, end)
        if start < address:
            self._add(start, address, HOLE)
        self._add(address, address + nbytes, owner)
        if address + nbytes < end:
            self._add(address + nbytes, end, HOLE)
        self._at[owner] = address

    def free(self, owner: int) -> None:
        """Make a hole of a block."""
        start = self._at.pop(owner)
        end, _ = self._spans[start]
        self._starts.pop(bisect_left(self._starts, start))
        del self._spans[start]
        before = self.find_before(start)
        if before is not None and self._spans[before][1] == HOLE:
            self._drop_hole(before, start)
            start = before
        if end in self._spans and self._spans[end][1] == HOLE:
            beyond = self._spans[end][0]
            self._drop_hole(end, beyond)
            end = beyond
        self._add(start, end, HOLE)

    def hand_over(self, owner: int, heir: int) -> None:
        """Give a block to another owner."""
        start = self._at.pop(owner)
        self._spans[start] = (self._spans[start][0], heir)
        self._at[heir] = start

    def _add(self, start: int, end: int, owner: int) -> None:
        insort(self._starts, start)
        self._spans[start] = (end, owner)
        self._start_of[end] = start
        if owner == HOLE:
            insort(self._holes, (end - start, start))

    def _drop_hole(self, start: int, end: int) -> None:
        self._starts.pop(bisect_left(self._starts, start))
        del self._spans[start]
        self._holes.pop(bisect_left(self._holes, (end - start, start)))
