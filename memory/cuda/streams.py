"""Streams of a GPU as queues, their events, and seconds by events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..devices.device import Work
from ..errors import DeviceError
from .runtime import CudaRuntime


class EventPool:
    """The events of a device, used again once nobody holds them."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._made: list[int] = []
        self._free: list[int] = []

    def recorded(self, stream: int) -> CudaEvent:
        """An event at the present end of a stream."""
        if self._free:
            handle = self._free.pop()
        else:
            handle = self._runtime.eventCreateWithFlags(self._runtime.eventDisableTiming)
            self._made.append(handle)
        self._runtime.eventRecord(handle, stream)
        return CudaEvent(handle, self._free)

    def close(self) -> None:
        """Destroy all, also those that somebody holds."""
        while self._made:
            self._runtime.eventDestroy(self._made.pop())


class CudaEvent:
    """A point in a stream; its handle goes back to its pool with it."""

    __slots__ = ("_free", "handle")

    def __init__(self, handle: int, free: list[int]) -> None:
        self.handle = handle
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.handle)


class CudaQueue:
    """A stream. Work that is launched puts what it does into the stream itself and returns."""

    def __init__(self, name: str, runtime: CudaRuntime, events: EventPool) -> None:
        self.name = name
        self.stream = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
        self._runtime = runtime
        self._events = events

    def launch(self, work: Work) -> None:
        """Let `work` put its kernels into the stream; raises DeviceError where that fails."""
        try:
            work.run()
        except self._runtime.CUDARuntimeError as error:
            raise DeviceError(f"queue {self.name!r}, {work.label}", "the work to be launched", str(error)) from error

    def record(self) -> CudaEvent:
        """Return an event that is reached once all work launched so far has run."""
        return self._events.recorded(self.stream)

    def wait(self, event: CudaEvent) -> None:
        """Make later work wait for `event`."""
        self._runtime.streamWaitEvent(self.stream, event.handle)

    def synchronize(self) -> None:
        """Block until all work has run; raises DeviceError where the GPU met an error."""
        try:
            self._runtime.streamSynchronize(self.stream)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceError(f"queue {self.name!r}", "its work to run", str(error)) from error


def timed(runtime: CudaRuntime, launches: Sequence[tuple[CudaQueue, Callable[[], None]]]) -> list[float]:
    """Seconds from the begin to the end of what each function launches in its queue; all begin together.

    Args:
        runtime: of the queues.
        launches: in different queues; the first holds the others back until it begins.
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
