"""What a device is to the rest of the runtime: one arena, three queues, events, and copies, also to and from tiers.

A `Queue` runs its work in order; two queues run at once unless an `Event` orders them. The executor launches the
steps of a plan and decides nothing. Three kinds of device exist: the host (`host.py`), the simulated one that runs
queues in an adversarial order and reports races (`simulated.py`), and a GPU (`cuda.py`). A `Machine` opens them.
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
"""Bytes of a tier: its name, the first and the end, exclusive."""


@dataclass(frozen=True, slots=True)
class Accesses:
    """What a piece of work reads and writes.

    Attributes:
        reads: byte ranges `(first, end)` of the arena; `end` is exclusive.
        writes: the same.
        tier_reads: byte ranges `(tier's name, first, end)` of places outside the arena.
        tier_writes: the same.
    """

    reads: tuple[tuple[int, int], ...] = ()
    writes: tuple[tuple[int, int], ...] = ()
    tier_reads: tuple[TierRange, ...] = ()
    tier_writes: tuple[TierRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work for a queue.

    Attributes:
        label: what it is, for errors and traces.
        run: does it.
        accesses: says which bytes it touches; called only by devices that check for races.
    """

    label: str
    run: Callable[[], None]
    accesses: Callable[[], Accesses]


class Event(Protocol):
    """A point in a queue that another queue, or the caller, can wait for."""


class Queue(Protocol):
    """Work in order. An error raised by queued work surfaces at the next `synchronize` of that queue."""

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
        name: of the kind of device, as figures about it are kept.
        compute, out, inward: its queues.
        own_tier: makes a place of so many bytes that the device itself moves bytes to; None where a disk must serve.
    """

    name: str
    compute: Queue
    out: Queue
    inward: Queue
    own_tier: Callable[[int], CountedTier] | None

    @property
    def arena(self) -> Region:
        """Where all tensors lie."""

    def upload(self, queue: Queue, address: int, source: npt.NDArray[np.generic]) -> None:
        """Queue a copy of `source` (C order, contiguous) to the arena bytes that start at `address`."""

    def download(self, queue: Queue, address: int, target: npt.NDArray[np.generic]) -> None:
        """Queue a copy of the arena bytes that start at `address` into `target` (C order, contiguous)."""

    def offload(self, queue: Queue, address: int, nbytes: int, tier: Tier, tier_address: int) -> None:
        """Queue a copy of `nbytes` from `address` in the arena to `tier_address` in `tier`."""

    def fetch(self, queue: Queue, tier: Tier, tier_address: int, address: int, nbytes: int) -> None:
        """Queue a copy of `nbytes` from `tier_address` in `tier` to `address` in the arena."""

    def seconds(self, run: Callable[[], None]) -> float:
        """How long the computation that `run` launches takes, with nothing else under way."""

    def bandwidth(self, tier: Tier, work: Computation | None) -> Bandwidth:
        """How fast bytes move between the first bytes of the arena and `tier`, and what that costs `work` beside it."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None] | None:
        """What does the same as `run`, which has run before, for less; None where nothing is gained.

        `run` launches work in the compute queue, and in the others between an event of that queue that they wait for
        and one of theirs that it waits for.
        """

    def close(self) -> None:
        """End the queues and give the arena back."""


class Machine(Protocol):
    """Where arenas can be had."""

    name: str

    def free_bytes(self) -> int:
        """Bytes that an arena could have now."""

    def default_budget(self) -> int:
        """The budget where the user gives none: most of what is free; raises BudgetError where nothing would be left."""

    def open(self, nbytes: int) -> Device:
        """Open a device with an arena of so many bytes; raises BudgetError where it cannot be had."""
