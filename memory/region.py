"""A block of bytes of fixed size, and the highest byte of it that was asked for.

This is what plans, executors and backends know of an arena, wherever it lies: in the memory of the host (`arena.py`) or
of a GPU (`cuda/arena.py`). A region checks that ranges lie inside it, and remembers the highest byte that was ever
asked for, so that what a plan predicted can be compared with what was used. It does not check that two ranges are
disjoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from .errors import PlanError

NO_STREAM = 0


class Region(ABC):
    """A fixed number of bytes.

    Attributes:
        name: what errors call it.
        nbytes: its size.
        base: the machine address of its first byte, a multiple of 256.
        stream: handle of the stream in which a GPU computes on it; 0 on a machine without streams.
        high_water_bytes: the highest end of all ranges claimed since the last `reset_high_water`.
        committed_bytes: how many of the first bytes are resident.
    """

    def __init__(self, nbytes: int, name: str) -> None:
        self.name = name
        self.nbytes = nbytes
        self.base = 0
        self.stream = NO_STREAM
        self.high_water_bytes = 0
        self.committed_bytes = 0

    def claim(self, address: int, nbytes: int) -> None:
        """Check that `nbytes` from `address` lie inside and raise the high-water mark to their end.

        Raises:
            PlanError: they lie outside, or the region is closed.
        """
        self.check(address, nbytes)
        # No bytes, no mark: an empty tensor at the very end uses nothing.
        if nbytes and address + nbytes > self.high_water_bytes:
            self.high_water_bytes = address + nbytes

    def check(self, address: int, nbytes: int) -> None:
        """Raise PlanError unless `nbytes` from `address` lie inside and the region is open."""
        if address < 0 or nbytes < 0 or address + nbytes > self.nbytes:
            raise PlanError(self.name, f"a range inside [0, {self.nbytes})", f"[{address}, {address + nbytes})")
        if self.closed:
            raise PlanError(self.name, f"an open {self.name}", f"[{address}, {address + nbytes}) of a closed one")

    def reset_high_water(self) -> None:
        """Forget the high-water mark, as before a step that is to be measured."""
        self.high_water_bytes = 0

    @abstractmethod
    def commit(self, nbytes: int | None = None) -> None:
        """Make the first `nbytes` (all by default) resident now, keeping their contents; raises BudgetError."""

    @abstractmethod
    def poison(self, byte: int, address: int, nbytes: int) -> None:
        """Fill `nbytes` from `address` with `byte`; the high-water mark stays."""

    @abstractmethod
    def close(self) -> None:
        """Give the bytes back; closing twice is allowed."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether `close` was called."""
