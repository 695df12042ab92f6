"""The protocol of a device: one arena, three queues, events, and copies within the arena's machine and to tiers.

A `Queue` runs its work in order; two queues run at the same time unless an `Event` orders them. Three kinds of device
exist: the host (`host.py`), the simulated device, which runs queues in an adversarial order and reports races
(`simulated.py`), and a GPU (`cuda/device.py`). A `Machine` opens devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..region import Region
from ..tiers.tier import Tier
from ..tiers.timed import CountedTier
from .bandwidth import Bandwidth, Computation

TierRange = tuple[str, int, int]
"""Bytes of a tier: the tier's name, the first byte, and the end, which is exclusive."""


@dataclass(frozen=True, slots=True)
class Accesses:
    """The bytes that a piece of work reads and writes.

    Attributes:
        reads: byte ranges `(first, end)` of the arena; `end` is exclusive.
        writes: byte ranges of the arena, in the same form.
        tier_reads: byte ranges `(tier's name, first, end)` of tiers.
        tier_writes: byte ranges of tiers, in the same form.
    """

    reads: tuple[tuple[int, int], ...] = ()
    writes: tuple[tuple[int, int], ...] = ()
    tier_reads: tuple[TierRange, ...] = ()
    tier_writes: tuple[TierRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work for a queue.

    Attributes:
        label: what the work is, for errors and traces.
        run: does the work.
        accesses: returns which bytes the work touches; only devices that check for races call it.
    """

    label: str
    run: Callable[[], None]
    accesses: Callable[[], Accesses]


class Event(Protocol):
    """A point in a queue that another queue, or the caller, can wait for."""


class Queue(Protocol):
    """A queue that runs its work in order. An error of its work is raised by the next `synchronize` of that queue."""

    name: str

    def launch(self, work: Work) -> None:
        """Append `work`; may return before it has run."""

    def record(self) -> Any:
        """Return an event that is reached once all work launched so far on this queue has run."""

    def wait(self, event: Any) -> None:
        """Make all later work of this queue wait for `event`; does not block the caller."""

    def synchronize(self) -> None:
        """Block the caller until all work of this queue has run."""


class Device(Protocol):
    """An arena and the queues that work on it.

    Attributes:
        name: the kind of device, under which what was measured about it is kept.
        compute: the queue of the computation.
        out: the queue of copies from the arena to tiers.
        inward: the queue of copies from tiers to the arena.
        own_tier: makes a tier of a number of bytes that the device copies to by itself; None where it has none, and a
            disk must serve.
    """

    name: str
    compute: Queue
    out: Queue
    inward: Queue
    own_tier: Callable[[int], CountedTier] | None

    @property
    def arena(self) -> Region:
        """The arena, in which all tensors lie."""

    def upload(self, queue: Queue, address: int, source: npt.NDArray[np.generic]) -> None:
        """Queue a copy of `source` (C order, contiguous) to the arena bytes that start at `address`."""

    def download(self, queue: Queue, address: int, target: npt.NDArray[np.generic]) -> None:
        """Queue a copy of the arena bytes that start at `address` into `target` (C order, contiguous)."""

    def offload(self, queue: Queue, address: int, nbytes: int, tier: Tier, tier_address: int) -> None:
        """Queue a copy of `nbytes` from `address` in the arena to `tier_address` in `tier`."""

    def fetch(self, queue: Queue, tier: Tier, tier_address: int, address: int, nbytes: int) -> None:
        """Queue a copy of `nbytes` from `tier_address` in `tier` to `address` in the arena."""

    def seconds(self, run: Callable[[], None]) -> float:
        """Return how many seconds the computation that `run` launches takes while nothing else is under way."""

    def bandwidth(self, tier: Tier, work: Computation | None) -> Bandwidth:
        """Measure how fast the first bytes of the arena move to `tier` and back, and how that slows down `work`."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None] | None:
        """Return a function that does what `run` does at a lower cost, or None where nothing is gained.

        `run` has run before. It launches work in the compute queue. What it launches in another queue comes after an
        event of the compute queue and before an event that the compute queue waits for.
        """

    def close(self) -> None:
        """End the queues and give the arena back."""


class Machine(Protocol):
    """A machine that has memory for arenas, and opens devices."""

    name: str

    def free_bytes(self) -> int:
        """Return the number of bytes that an arena could have now."""

    def default_budget(self, process_need: int) -> int:
        """Return the budget for a user who gives none, most of what is free; raises BudgetError if that is nothing.

        `process_need` are the bytes of the host's memory that the process will yet take outside the arena.
        """

    def largest_budget(self, process_need: int) -> int:
        """Return the largest budget that fits beside what the process will yet take of the host's memory."""

    def open(self, nbytes: int) -> Device:
        """Open a device with an arena of `nbytes`; raises BudgetError where there is no such memory."""
