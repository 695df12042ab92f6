"""Streams of a GPU as queues, events in these streams, and measuring seconds by events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..devices.device import Work
from ..errors import DeviceError
from .runtime import CudaRuntime


class EventPool:
    """The events of a device, each of which is used again once nobody holds it."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._made: list[int] = []
        self._free: list[int] = []

    def record(self, stream: int) -> CudaEvent:
        """Record an event at the present end of a stream and return it."""
        if self._free:
            handle = self._free.pop()
        else:
            handle = self._runtime.eventCreateWithFlags(self._runtime.eventDisableTiming)
            self._made.append(handle)
        self._runtime.eventRecord(handle, stream)
        return CudaEvent(handle, self._free)

    def close(self) -> None:
        """Destroy all events, also those that somebody holds."""
        while self._made:
            self._runtime.eventDestroy(self._made.pop())


class CudaEvent:
    """A point in a stream; when the event is deleted, its handle goes back to the pool."""

    __slots__ = ("_free", "handle")

    def __init__(self, handle: int, free: list[int]) -> None:
        self.handle = handle
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.handle)


class CudaQueue:
    """A stream as a queue. Work that is launched puts its kernels and copies into the stream and returns."""

    def __init__(self, name: str, runtime: CudaRuntime, events: EventPool) -> None:
        self.name = name
        self.stream = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
        self._runtime = runtime
        self._events = events

    def launch(self, work: Work) -> None:
        """Run `work`, which puts its kernels into the stream; raises DeviceError where that fails."""
        try:
            work.run()
        except self._runtime.CUDARuntimeError as error:
            raise DeviceError(f"queue {self.name!r}, {work.label}", "the work to be launched", str(error)) from error

    def record(self) -> CudaEvent:
        """Return an event that is reached once all work launched so far has run."""
        return self._events.record(self.stream)

    def wait(self, event: CudaEvent) -> None:
        """Make later work wait for `event`."""
        self._runtime.streamWaitEvent(self.stream, event.handle)

    def synchronize(self) -> None:
        """Block until all work has run; raises DeviceError where the GPU met an error."""
        try:
            self._runtime.streamSynchronize(self.stream)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceError(f"queue {self.name!r}", "its work to run", str(error)) from error


def time_launches(runtime: CudaRuntime, launches: Sequence[tuple[CudaQueue, Callable[[], None]]]) -> list[float]:
    """Return, for each function, the seconds from the begin to the end of what it launches; all begin together.

    Args:
        runtime: the runtime that the queues belong to.
        launches: functions with the queues that they launch in, all different; the others wait until the first begins.
    """
    start = launches[0][0].record()
    events = []
    for queue, run in launches:
        first, last = (runtime.eventCreateWithFlags(runtime.eventDefault) for _ in range(2))
        queue.wait(start)
        runtime.eventRecord(first, queue.stream)
        run()
        runtime.eventRecord(last, queue.stream)
        events.append((first, last))
    found = []
    for (queue, _), (first, last) in zip(launches, events, strict=True):
        queue.synchronize()
        found.append(runtime.eventElapsedTime(first, last) / 1e3)
        runtime.eventDestroy(first)
        runtime.eventDestroy(last)
    return found
