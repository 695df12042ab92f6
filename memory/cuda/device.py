"""A GPU as a device: an arena in one allocation, three streams, and copies between the arena and pinned memory.

Each queue is a non-blocking stream of its own, so the copy engines of both directions work beside the computation, and
only events order them. Launching returns at once; an error that the GPU meets is raised by a `synchronize`. Nothing is
allocated after `open` but events, which are used again. The device does not check for races; `devices/simulated.py`
does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..devices.bandwidth import Bandwidth, Computation
from ..devices.device import Queue
from ..errors import BudgetError, DataError, DeviceError, PlanError
from ..sizes import format_size_exact
from ..tiers.tier import Tier
from ..tiers.timed import CountedTier
from .arena import RESERVED_BYTES, CudaArena
from .bandwidth import measure_streams
from .pinned import PinnedTier
from .runtime import CudaRuntime, cuda_runtime
from .streams import CudaQueue, EventPool, time_launches

logger = logging.getLogger(__name__)

FLUSHED_BYTES = 256 * 2**20
"""How many bytes are filled before a measurement: more than the caches hold, and for longer than launching takes."""


class CudaDevice:
    """A `Device` on the current GPU."""

    def __init__(self, runtime: CudaRuntime, nbytes: int, graphs: bool = True) -> None:
        """Allocate the arena and make the streams.

        Args:
            runtime: the CUDA runtime.
            nbytes: size of the arena.
            graphs: whether `capture` makes CUDA graphs.

        Raises:
            BudgetError: CUDA refuses the memory.
        """
        self.name = f"cuda, {device_name(runtime)}"
        self._runtime = runtime
        self._events = EventPool(runtime)
        self._captures = graphs
        self._graphs: list[int] = []
        self._noted: dict[PinnedTier, list[int]] | None = None
        self._queues = [CudaQueue(name, runtime, self._events) for name in ("compute", "out", "inward")]
        try:
            self.arena = CudaArena(runtime, nbytes, self._queues[0].stream)
        except BudgetError:
            self._destroy_streams()
            raise
        self.compute: Queue = self._queues[0]
        self.out: Queue = self._queues[1]
        self.inward: Queue = self._queues[2]
        self.own_tier: Callable[[int], CountedTier] | None = partial(PinnedTier, runtime)

    def upload(self, queue: Queue, address: int, source: npt.NDArray[np.generic]) -> None:
        """Queue a copy of `source` to `address`; `source` may be changed once this returns.

        Raises:
            DataError: `source` is not contiguous, or holds objects.
            PlanError: the bytes lie outside the arena.
        """
        pointer = self._require_host_array(source, address)
        kind = self._runtime.memcpyHostToDevice
        self._copy(queue, self.arena.base + address, pointer, source.nbytes, kind)

    def download(self, queue: Queue, address: int, target: npt.NDArray[np.generic]) -> None:
        """Copy from `address` into `target` after all earlier work of the queue, and wait until the copy is done.

        Raises:
            DataError: `target` is not contiguous, read-only, or holds objects.
            PlanError: the bytes lie outside the arena.
        """
        if not target.flags.writeable:
            raise DataError(f"download from {address}", "an array that can be written", "a read-only one")
        pointer = self._require_host_array(target, address)
        self._copy(queue, pointer, self.arena.base + address, target.nbytes, self._runtime.memcpyDeviceToHost)
        queue.synchronize()

    def _require_host_array(self, array: npt.NDArray[Any], address: int) -> int:
        if not array.flags.c_contiguous or array.dtype.hasobject:
            found = f"strides {array.strides} of {array.dtype}"
            raise DataError(f"copy at {address}", "a contiguous array in C order, without objects", found)
        self.arena.claim(address, array.nbytes)
        return int(array.ctypes.data)

    def offload(self, queue: Queue, address: int, nbytes: int, tier: Tier, tier_address: int) -> None:
        """Queue a copy from the arena to pinned memory; raises PlanError where the bytes lie outside one of them."""
        target = self._require_pinned(tier)
        self.arena.check(address, nbytes)
        pointer = target.pointer(tier_address, nbytes)
        self._copy(queue, pointer, self.arena.base + address, nbytes, self._runtime.memcpyDeviceToHost)
        self._note(target, nbytes, 0)

    def fetch(self, queue: Queue, tier: Tier, tier_address: int, address: int, nbytes: int) -> None:
        """Queue a copy from pinned memory to the arena; raises PlanError where the bytes lie outside one of them."""
        source = self._require_pinned(tier)
        self.arena.check(address, nbytes)
        pointer = source.pointer(tier_address, nbytes)
        self._copy(queue, self.arena.base + address, pointer, nbytes, self._runtime.memcpyHostToDevice)
        self._note(source, 0, nbytes)

    def _note(self, tier: PinnedTier, out_bytes: int, in_bytes: int) -> None:
        """Count bytes that are moved now or, while a graph is captured, each time that this graph runs."""
        if self._noted is None:
            tier.note(out_bytes, in_bytes)
        else:
            found = self._noted.setdefault(tier, [0, 0])
            found[0] += out_bytes
            found[1] += in_bytes

    def _require_pinned(self, tier: Tier) -> PinnedTier:
        if not isinstance(tier, PinnedTier):
            raise PlanError(f"tier {tier.name!r}", "pinned memory, which a GPU copies to and from", type(tier).__name__)
        return tier

    def _copy(self, queue: Queue, target: int, source: int, nbytes: int, kind: int) -> None:
        assert isinstance(queue, CudaQueue), f"{queue} is a queue of another device"
        if nbytes:
            self._runtime.memcpyAsync(target, source, nbytes, kind, queue.stream)

    def seconds(self, run: Callable[[], None]) -> float:
        """Time what `run` launches by events, with other bytes in the GPU's caches; overwrites the arena's last bytes.

        Filling these bytes keeps the GPU busy until all of `run` is launched, so that launching is not timed.
        """
        flushed = min(FLUSHED_BYTES, self.arena.nbytes)
        self.arena.fill(0, self.arena.nbytes - flushed, flushed)
        return time_launches(self._runtime, [(self._queues[0], run)])[0]

    def bandwidth(self, tier: Tier, work: Computation | None) -> Bandwidth:
        """Measure with copies of the whole tier, which overwrite as many of the arena's first bytes as the tier has.

        Raises:
            PlanError: the tier is not pinned memory.
        """
        compute, out, inward = self._queues

        def leaving(times: int) -> None:
            for _ in range(times):
                self.offload(out, 0, tier.nbytes, tier, 0)

        def coming(times: int) -> None:
            for _ in range(times):
                self.fetch(inward, tier, 0, 0, tier.nbytes)

        return measure_streams(self._runtime, tier.nbytes, compute, (out, leaving), (inward, coming), work)

    def capture(self, run: Callable[[], None]) -> Callable[[], None] | None:
        """Record what `run` launches, in all queues, as one CUDA graph, and return a function that launches the graph.

        `run` begins in the compute queue, which waits for all work that `run` puts into other queues. Returns None
        where graphs are off and, with a warning, where some of the work cannot be captured.
        """
        if not self._captures:
            return None
        runtime, stream = self._runtime, self._queues[0].stream
        noted = self._noted = {}
        try:
            runtime.streamBeginCapture(stream, runtime.streamCaptureModeThreadLocal)
            try:
                run()
            finally:
                graph = runtime.streamEndCapture(stream)
            executable = runtime.graphInstantiate(graph)
            runtime.graphDestroy(graph)
        except (runtime.CUDARuntimeError, DeviceError) as error:
            logger.warning("a step cannot be captured, and is launched operation by operation: %s", error)
            return None
        finally:
            self._noted = None
        self._graphs.append(executable)

        def replay() -> None:
            runtime.graphLaunch(executable, stream)
            for tier, (out_bytes, in_bytes) in noted.items():
                tier.note(out_bytes, in_bytes)

        return replay

    def close(self) -> None:
        """Wait for what is queued and free everything; closing twice is allowed.

        An error that nobody has seen is logged.
        """
        if self.arena.closed:
            return
        for queue in self._queues:
            try:
                queue.synchronize()
            except DeviceError as error:
                logger.error("closed with a failure: %s", error)
        for executable in self._graphs:
            self._runtime.graphExecDestroy(executable)
        self._graphs.clear()
        self._events.close()
        self._destroy_streams()
        self.arena.close()

    def _destroy_streams(self) -> None:
        for queue in self._queues:
            self._runtime.streamDestroy(queue.stream)

    def __enter__(self) -> CudaDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class CudaMachine:
    """The current GPU of this machine.

    Args:
        runtime: the CUDA runtime; by default CuPy's, which is looked for on first use.
        graphs: whether steps are captured into CUDA graphs.
    """

    name = "cuda"

    def __init__(self, runtime: CudaRuntime | None = None, graphs: bool = True) -> None:
        self._runtime = runtime
        self._graphs = graphs

    @property
    def runtime(self) -> CudaRuntime:
        """The CUDA runtime; raises DeviceError where there is none."""
        if self._runtime is None:
            self._runtime = cuda_runtime()
        return self._runtime

    def free_bytes(self) -> int:
        """Return how much memory of the GPU is free, less what the libraries will need."""
        return max(int(self.runtime.memGetInfo()[0]) - RESERVED_BYTES, 0)

    def default_budget(self, process_need: int = 0) -> int:
        """Return 95 % of the GPU's free memory, raises BudgetError where it is none."""
        free = self.free_bytes()
        if not free:
            found = format_size_exact(self.runtime.memGetInfo()[0])
            needed = f"more than {format_size_exact(RESERVED_BYTES)} free on the GPU"
            raise BudgetError("memory", needed, f"{found} free", "End other programs on the GPU.")
        return free * 19 // 20

    def largest_budget(self, process_need: int = 0) -> int:
        """Return the GPU's free memory, of which the process takes none."""
        return self.free_bytes()

    def open(self, nbytes: int) -> CudaDevice:
        """Open a device; raises BudgetError where the memory cannot be had."""
        return CudaDevice(self.runtime, nbytes, self._graphs)


def device_name(runtime: CudaRuntime) -> str:
    """Return the vendor's name of the current GPU."""
    name = runtime.getDeviceProperties(0)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)
