"""A device that runs its queues in an adversarial order and reports every race.

Nothing runs when it is launched: a queue runs its work only inside a `synchronize`. A seeded generator draws which
queue goes next, with long runs of one queue, so that copies come as early or as late as events allow. Vector clocks,
one for each queue, decide whether two pieces of work are ordered: work comes after the earlier work of its queue, after
the events that its queue has waited for, and after everything that the host had seen through `synchronize` when it
launched the work. Two accesses to the same bytes that are not ordered, at least one of them a write, are a race,
whatever order this seed has run them in; so a missing wait is found by any seed that runs both.

The detector checks the ranges that works declare, in the arena and in tiers, and the arrays of `upload` and `download`.
(A fetch that starts before its offload has ended races on the tier's bytes, not on the arena's.) It does not check that
a work touches only what it declares, nor what the host does with an array, a tier or the arena by itself.

Source: Lamport 1978; `shadow.py`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arena import Arena
from ..errors import DeviceError, PlanError
from ..tiers.tier import Tier
from ..tiers.timed import CountedTier
from .bandwidth import Bandwidth, Computation, measure_link
from .device import Accesses, Queue, Work
from .host import WorkFailure, copy_work, fetch_work, offload_work, time_computation
from .shadow import Access, ShadowMemory

_QUEUE_NAMES = ("compute", "out", "inward")
_CHANGE_OF_FAVOURITE = 0.2

_Ranges = tuple[tuple[int, int], ...]


class _SimulatedEvent:
    """A point in a queue: the vector clock there, once it is reached."""

    __slots__ = ("clock", "failure", "queue")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.clock: list[int] | None = None
        self.failure: WorkFailure | None = None


@dataclass(frozen=True, slots=True)
class _Launched:
    """Work, what it touches in host memory, and what the host had seen when it launched it."""

    work: Work
    host_accesses: Accesses
    seen: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Wait:
    event: _SimulatedEvent


class _SimulatedQueue:
    """A queue that holds its work until some queue of the device is synchronized."""

    def __init__(self, device: SimulatedDevice, number: int) -> None:
        self.name = _QUEUE_NAMES[number]
        self.number = number
        self.items: deque[_Launched | _SimulatedEvent | _Wait] = deque()
        self.clock = [0] * len(_QUEUE_NAMES)
        self.failure: WorkFailure | None = None
        self._device = device

    def launch(self, work: Work, host_accesses: Accesses | None = None) -> None:
        """Append `work`; `host_accesses` are the ranges of machine addresses that it touches outside the arena."""
        self._append(_Launched(work, host_accesses or Accesses(), tuple(self._device.seen)))

    def record(self) -> _SimulatedEvent:
        """Return an event that is reached once all work launched so far has run."""
        event = _SimulatedEvent(self.name)
        self._append(event)
        return event

    def wait(self, event: _SimulatedEvent) -> None:
        """Make later work wait for `event`."""
        self._append(_Wait(event))

    def synchronize(self) -> None:
        """Run queues in adversarial order until this one is empty.

        Raises:
            RaceError: two accesses are not ordered.
            DeviceError: work of this queue failed, or it waits for an event that is never reached.
        """
        self._device.run_until_empty(self)
        failure, self.failure = self.failure, None
        if failure is not None:
            failure.throw()

    def _append(self, item: _Launched | _SimulatedEvent | _Wait) -> None:
        if self._device.arena.closed:
            raise DeviceError(f"queue {self.name!r}", "an open device", "a closed one")
        self.items.append(item)


class SimulatedDevice:
    """A `Device` on an arena in host memory that finds races and runs in one order for each seed.

    Attributes:
        seen: for each queue, how much of its work the host knows to have run.
    """

    def __init__(self, arena: Arena, seed: int = 0) -> None:
        """Own `arena` from now on; `seed` chooses the order in which the queues run."""
        self.name = f"simulated (seed {seed})"
        self.own_tier: Callable[[int], CountedTier] | None = None
        self.arena = arena
        self.seen = [0] * len(_QUEUE_NAMES)
        self._random = random.Random(seed)
        self._queues = [_SimulatedQueue(self, number) for number in range(len(_QUEUE_NAMES))]
        self.compute: Queue = self._queues[0]
        self.out: Queue = self._queues[1]
        self.inward: Queue = self._queues[2]
        self._favourites = list(self._queues)
        self._shadow = ShadowMemory("arena")
        self._host_shadow = ShadowMemory("host memory")
        self._tier_shadows: dict[str, ShadowMemory] = {}
        self._tiers: dict[str, Tier] = {}
        # An array that died would let another one take its address, and its history with it.
        self._host_arrays: dict[int, Any] = {}

    @property
    def shadow_ranges(self) -> int:
        """How many byte ranges the race detector distinguishes now.

        It is public for tests, which check that the detector's own use of memory does not grow from step to step.
        """
        return len(self._shadow) + len(self._host_shadow) + sum(map(len, self._tier_shadows.values()))

    def upload(self, queue: Queue, address: int, source: npt.NDArray[np.generic]) -> None:
        """Queue a copy of `source` to `address`; raises DataError or PlanError where it cannot be copied so."""
        self._copy(queue, address, source, upload=True)

    def download(self, queue: Queue, address: int, target: npt.NDArray[np.generic]) -> None:
        """Queue a copy from `address` into `target`; raises DataError or PlanError where it cannot be copied so."""
        self._copy(queue, address, target, upload=False)

    def offload(self, queue: Queue, address: int, nbytes: int, tier: Tier, tier_address: int) -> None:
        """Queue a copy from the arena to `tier`.

        Raises:
            PlanError: the bytes lie outside one of them, or another tier has the same name.
        """
        self._know(tier)
        queue.launch(offload_work(self.arena, address, nbytes, tier, tier_address))

    def fetch(self, queue: Queue, tier: Tier, tier_address: int, address: int, nbytes: int) -> None:
        """Queue a copy from `tier` to the arena; raises PlanError as `offload` does."""
        self._know(tier)
        queue.launch(fetch_work(self.arena, tier, tier_address, address, nbytes))

    def seconds(self, run: Callable[[], None]) -> float:
        """Time what `run` launches on the compute queue and what it computes by itself."""

        def run_and_wait() -> None:
            run()
            self.compute.synchronize()

        return time_computation(self.arena, run_and_wait)

    def bandwidth(self, tier: Tier, work: Computation | None) -> Bandwidth:
        """Measure as the host does."""
        return measure_link(tier, self.arena.view(0, tier.nbytes), work)

    def capture(self, run: Callable[[], None]) -> None:
        """Return None, because nothing is gained here."""

    def close(self) -> None:
        """Drop what is queued and close the arena; closing twice is allowed."""
        for queue in self._queues:
            queue.items.clear()
        self._host_arrays.clear()
        self.arena.close()

    def run_until_empty(self, target: _SimulatedQueue) -> None:
        """Run queues in adversarial order until `target` is empty; then the host has seen all its work.

        Raises:
            RaceError: two accesses are not ordered.
            DeviceError: no queue can go on.
        """
        while target.items:
            if self._random.random() < _CHANGE_OF_FAVOURITE:
                self._random.shuffle(self._favourites)
            queue = next((queue for queue in self._favourites if _can_run(queue)), None)
            if queue is None:
                blocked = target.items[0]
                assert isinstance(blocked, _Wait)
                raise DeviceError(
                    f"queue {target.name!r}",
                    f"an event of queue {blocked.event.queue!r} to be reached",
                    "a deadlock: no queue can run, and the event is still ahead",
                )
            self._advance(queue)
        _join(self.seen, target.clock)
        if all(queue.clock[queue.number] == self.seen[queue.number] and not queue.items for queue in self._queues):
            # Whatever is launched from now on comes after all that was.
            self._shadow.clear()
            self._host_shadow.clear()
            self._tier_shadows.clear()
            self._host_arrays.clear()

    def _know(self, tier: Tier) -> None:
        if self._tiers.setdefault(tier.name, tier) is not tier:
            raise PlanError(f"tier {tier.name!r}", "tiers of different names", "two of this name")

    def _copy(self, queue: Queue, address: int, array: npt.NDArray[Any], *, upload: bool) -> None:
        work = copy_work(self.arena, address, array, upload=upload)
        assert isinstance(queue, _SimulatedQueue), f"{queue} is a queue of another device"
        first = int(array.__array_interface__["data"][0])
        touched = ((first, first + array.nbytes),)
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self._host_arrays[id(owner)] = owner
        queue.launch(work, Accesses(reads=touched) if upload else Accesses(writes=touched))

    def _advance(self, queue: _SimulatedQueue) -> None:
        item = queue.items.popleft()
        if isinstance(item, _SimulatedEvent):
            item.clock = list(queue.clock)
            item.failure = queue.failure
        elif isinstance(item, _Wait):
            assert item.event.clock is not None
            _join(queue.clock, item.event.clock)
            queue.failure = queue.failure or item.event.failure
        else:
            _join(queue.clock, item.seen)
            queue.clock[queue.number] += 1
            if queue.failure is None:
                self._run(queue, item)

    def _run(self, queue: _SimulatedQueue, launched: _Launched) -> None:
        label = f"{launched.work.label} ({queue.name})"
        access = Access(queue.number, queue.clock[queue.number], label)
        accesses = launched.work.accesses()
        for first, end in (*accesses.reads, *accesses.writes):
            if not 0 <= first <= end <= self.arena.nbytes:
                raise PlanError(label, f"ranges inside [0, {self.arena.nbytes})", f"[{first}, {end})")
        clock = queue.clock
        _note(self._shadow, accesses.reads, accesses.writes, access, clock)
        _note(self._host_shadow, launched.host_accesses.reads, launched.host_accesses.writes, access, clock)
        for name, first, end in accesses.tier_reads:
            _note(self._tier_shadow(name), ((first, end),), (), access, clock)
        for name, first, end in accesses.tier_writes:
            _note(self._tier_shadow(name), (), ((first, end),), access, clock)
        try:
            launched.work.run()
        except Exception as error:
            queue.failure = WorkFailure(queue.name, launched.work.label, error)

    def _tier_shadow(self, name: str) -> ShadowMemory:
        if name not in self._tier_shadows:
            self._tier_shadows[name] = ShadowMemory(f"tier {name!r}")
        return self._tier_shadows[name]

    def __enter__(self) -> SimulatedDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _can_run(queue: _SimulatedQueue) -> bool:
    if not queue.items:
        return False
    head = queue.items[0]
    return not isinstance(head, _Wait) or head.event.clock is not None


def _join(clock: list[int], other: list[int] | tuple[int, ...]) -> None:
    for number, count in enumerate(other):
        if count > clock[number]:
            clock[number] = count


def _note(shadow: ShadowMemory, reads: _Ranges, writes: _Ranges, access: Access, clock: list[int]) -> None:
    for first, end in reads:
        if first < end:
            shadow.read(first, end, access, clock)
    for first, end in writes:
        if first < end:
            shadow.write(first, end, access, clock)
