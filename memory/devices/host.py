"""The host as a device: it computes in the caller's thread and copies in two worker threads.

The compute queue is synchronous, so that launching costs one call. The `out` and `inward` queues have one thread each
and run their work in order. Numpy's copies and a tier's transfers release the interpreter lock, so they overlap with
the arithmetic.

Once work of a queue has failed, later work of that queue is skipped until its `synchronize` has raised the error.
Events that are recorded meanwhile are reached, so that nobody waits forever, but they carry the failure on to whoever
waits for them, so that no operation reads bytes that never came. One thread drives a device. The device does not check
for races; `simulated.py` does.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..arena import Arena
from ..errors import BathyalError, DataError, DeviceError
from ..process.available import default_budget, free_memory, largest_budget
from ..tiers.tier import Tier, check_range
from ..tiers.timed import CountedTier
from .bandwidth import Bandwidth, Computation, measure_link
from .device import Accesses, Queue, Work

logger = logging.getLogger(__name__)

EVICTED_BYTES = 16 * 2**20
"""How many bytes are read to fill the caches of one core with something else."""


@dataclass(frozen=True, slots=True)
class WorkFailure:
    """The failure of a piece of work: its queue, its label, and the exception."""

    queue: str
    label: str
    error: BaseException

    def throw(self) -> NoReturn:
        """Raise a DeviceError for it, a new one each time, because the failure may be raised by two queues."""
        hint = self.error.hint if isinstance(self.error, BathyalError) else ""
        raise DeviceError(
            f"queue {self.queue!r}, {self.label}",
            "the work to run",
            f"{type(self.error).__name__}: {self.error}",
            hint,
        ) from self.error


class HostEvent:
    """A point in a worker's queue; `failure` is set, before the point is reached, where earlier work had failed."""

    __slots__ = ("_reached", "failure")

    def __init__(self) -> None:
        self._reached = threading.Event()
        self.failure: WorkFailure | None = None

    def reach(self) -> None:
        """Mark the event as reached, which ends every wait for it."""
        self._reached.set()

    def block(self) -> None:
        """Block the caller until the event is reached."""
        self._reached.wait()


class _SynchronousQueue:
    """A queue that runs work at once in the caller's thread, and raises its errors there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._event = HostEvent()
        self._event.reach()

    def launch(self, work: Work) -> None:
        """Run `work` now."""
        work.run()

    def record(self) -> HostEvent:
        """Return an event that is reached already."""
        return self._event

    def wait(self, event: HostEvent) -> None:
        """Block until `event` is reached; raises DeviceError where the work before it failed."""
        event.block()
        if event.failure is not None:
            event.failure.throw()

    def synchronize(self) -> None:
        """Do nothing, because all work has run already."""


class _WorkerQueue:
    """A queue that runs work in order in one daemon thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._failure: WorkFailure | None = None
        self._closed = False
        self._items: queue.SimpleQueue[Work | HostEvent | _Wait | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"bathyal-{name}", daemon=True)
        self._thread.start()

    def launch(self, work: Work) -> None:
        """Append `work`; raises DeviceError once closed."""
        self._put(work)

    def record(self) -> HostEvent:
        """Return an event that is reached once all work launched so far has run or was skipped."""
        event = HostEvent()
        self._put(event)
        return event

    def wait(self, event: HostEvent) -> None:
        """Make later work wait for `event`; its failure, if any, becomes this queue's."""
        self._put(_Wait(event))

    def synchronize(self) -> None:
        """Block until all work has run; raises DeviceError, once, where some of it failed."""
        if threading.current_thread() is self._thread:
            raise DeviceError(f"queue {self.name!r}", "to be synchronized from outside", "a call by its own work")
        self.record().block()
        # The worker is idle now, so nobody else writes this field.
        failure, self._failure = self._failure, None
        if failure is not None:
            failure.throw()

    def close(self) -> None:
        """Run what is queued and end the thread; an error that nobody has seen is logged."""
        if not self._closed:
            self._closed = True
            self._items.put(None)
            self._thread.join()
            if self._failure is not None:
                logger.error("queue %r closed with a failure: %s", self.name, self._failure)

    def _put(self, item: Work | HostEvent | _Wait) -> None:
        if self._closed:
            raise DeviceError(f"queue {self.name!r}", "an open queue", "a closed one")
        self._items.put(item)

    def _serve(self) -> None:
        while (item := self._items.get()) is not None:
            if isinstance(item, HostEvent):
                item.failure = self._failure
                item.reach()
            elif isinstance(item, _Wait):
                # Waits are kept even after a failure: work after the next synchronize relies on them.
                item.event.block()
                self._failure = self._failure or item.event.failure
            elif self._failure is None:
                try:
                    item.run()
                except BaseException as error:
                    self._failure = WorkFailure(self.name, item.label, error)
            # A work holds the arrays that it copies; without this line the last one lives until the next comes.
            del item


@dataclass(frozen=True, slots=True)
class _Wait:
    event: HostEvent


class HostDevice:
    """A `Device` on an arena in host memory: one synchronous compute queue and two copying threads."""

    def __init__(self, arena: Arena) -> None:
        """Start the threads; the device owns `arena` from now on."""
        self.name = "host"
        self.own_tier: Callable[[int], CountedTier] | None = None
        self.arena = arena
        self.compute: Queue = _SynchronousQueue("compute")
        self._workers = (_WorkerQueue("out"), _WorkerQueue("inward"))
        self.out: Queue = self._workers[0]
        self.inward: Queue = self._workers[1]

    def upload(self, queue: Queue, address: int, source: npt.NDArray[np.generic]) -> None:
        """Queue a copy of `source` to `address`; `source` must stay as it is until the copy has run.

        Raises:
            DataError: `source` is not contiguous, or holds objects.
            PlanError: the bytes lie outside the arena.
        """
        queue.launch(copy_work(self.arena, address, source, upload=True))

    def download(self, queue: Queue, address: int, target: npt.NDArray[np.generic]) -> None:
        """Queue a copy from `address` into `target`.

        Raises:
            DataError: `target` is not contiguous, read-only, or holds objects.
            PlanError: the bytes lie outside the arena.
        """
        queue.launch(copy_work(self.arena, address, target, upload=False))

    def offload(self, queue: Queue, address: int, nbytes: int, tier: Tier, tier_address: int) -> None:
        """Queue a copy from the arena to `tier`; raises PlanError where the bytes lie outside one of them."""
        queue.launch(offload_work(self.arena, address, nbytes, tier, tier_address))

    def fetch(self, queue: Queue, tier: Tier, tier_address: int, address: int, nbytes: int) -> None:
        """Queue a copy from `tier` to the arena; raises PlanError where the bytes lie outside one of them."""
        queue.launch(fetch_work(self.arena, tier, tier_address, address, nbytes))

    def seconds(self, run: Callable[[], None]) -> float:
        """Time what `run` computes. When it begins, the processor's caches hold other bytes of the arena."""
        return time_computation(self.arena, run)

    def bandwidth(self, tier: Tier, work: Computation | None) -> Bandwidth:
        """Measure with the first bytes of the arena, as many as the tier has; they are unchanged afterwards."""
        return measure_link(tier, self.arena.view(0, tier.nbytes), work)

    def capture(self, run: Callable[[], None]) -> None:
        """Return None, because launching costs next to nothing here."""

    def close(self) -> None:
        """Run what is queued, end the threads and close the arena; closing twice is allowed."""
        for worker in self._workers:
            worker.close()
        self.arena.close()

    def __enter__(self) -> HostDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class HostMachine:
    """The machine that this process runs on."""

    name = "host"

    def free_bytes(self) -> int:
        """Return how much memory is free, within the limits that hold for this process."""
        return free_memory()

    def default_budget(self, process_need: int) -> int:
        """Return the usual share of what is free, less the process's need; raises BudgetError if that is nothing."""
        return default_budget(process_need)

    def largest_budget(self, process_need: int) -> int:
        """Return what is free less what the process needs."""
        return largest_budget(process_need)

    def open(self, nbytes: int) -> HostDevice:
        """Open a device; raises BudgetError where the system refuses the address space."""
        return HostDevice(Arena(nbytes))


def time_computation(arena: Arena, run: Callable[[], None]) -> float:
    """Return the seconds of `run`, which begins with the arena's last committed bytes in the processor's caches."""
    arena.memory[max(arena.committed_bytes - EVICTED_BYTES, 0) : arena.committed_bytes].max(initial=0)
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def copy_work(arena: Arena, address: int, array: npt.NDArray[Any], *, upload: bool) -> Work:
    """Return the work that copies `array` to the arena (`upload`) or from it, after checking that it can.

    Raises:
        DataError: `array` is not contiguous in C order, holds objects, or is read-only where it is written.
        PlanError: the bytes lie outside the arena.
    """
    label = f"{'upload to' if upload else 'download from'} {address}"
    if not array.flags.c_contiguous or array.dtype.hasobject:
        raise DataError(
            label, "a contiguous array in C order, without objects", f"strides {array.strides} of {array.dtype}"
        )
    if not upload and not array.flags.writeable:
        raise DataError(label, "an array that can be written", "a read-only one")
    outside = array.reshape(-1).view(np.uint8)
    inside = arena.view(address, array.nbytes)
    target, source = (inside, outside) if upload else (outside, inside)
    touched = ((address, address + array.nbytes),)
    accesses = Accesses(writes=touched) if upload else Accesses(reads=touched)
    return Work(label, lambda: np.copyto(target, source), lambda: accesses)


def offload_work(arena: Arena, address: int, nbytes: int, tier: Tier, tier_address: int) -> Work:
    """Return the work that copies bytes of the arena to `tier`; raises PlanError where they lie outside one of them."""
    check_range(tier, tier_address, nbytes)
    source = arena.view(address, nbytes)
    accesses = Accesses(
        reads=((address, address + nbytes),), tier_writes=((tier.name, tier_address, tier_address + nbytes),)
    )
    label = f"offload from {address} to {tier.name} {tier_address}"
    return Work(label, lambda: tier.write(tier_address, source), lambda: accesses)


def fetch_work(arena: Arena, tier: Tier, tier_address: int, address: int, nbytes: int) -> Work:
    """Return the work that copies bytes of `tier` to the arena; raises PlanError where they lie outside one of them."""
    check_range(tier, tier_address, nbytes)
    target = arena.view(address, nbytes)
    accesses = Accesses(
        writes=((address, address + nbytes),), tier_reads=((tier.name, tier_address, tier_address + nbytes),)
    )
    label = f"fetch from {tier.name} {tier_address} to {address}"
    return Work(label, lambda: tier.read(tier_address, target), lambda: accesses)
