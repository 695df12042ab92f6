"""A CUDA runtime without a GPU: memory of the host, and streams whose work runs as late as events allow.

Nothing runs when it is launched. At a synchronization everything that the synchronized work depends on runs, and with
it, drawn from a seeded generator, work of other streams that may run too. So a wait that is missing shows in the
numbers. Copies are those of CUDA: to and from ordinary memory they block or are staged, to and from pinned memory they
are queued. Every call is counted; every pointer must lie in something that was allocated, every handle must be alive.
"""

import ctypes
import random
from collections import Counter

import numpy as np

KERNEL_SECONDS = 1e-3
"""On the clock of this GPU, whatever a kernel does."""


class CUDARuntimeError(Exception):
    """What CUDA says no with."""


class _Node:
    """A piece of work; `before` must have run first."""

    def __init__(self, run, before):
        self.run, self.before, self.done = run, before, False


class FakeCuda:
    """Stands for the module `cupy.cuda.runtime`.

    Args:
        total: bytes of the GPU.
        seed: of the order of work.
        pinnable: bytes that may be pinned.
        rate: bytes per second of a copy.

    Attributes:
        calls: how often each function was called.
        launched: names of the kernels launched so far, in order of launching.
    """

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost = 1, 2
    streamNonBlocking, eventDisableTiming, eventDefault, hostAllocDefault = 1, 2, 0, 0
    streamCaptureModeThreadLocal = 1
    major = 9

    def __init__(self, total=2**32, seed=0, pinnable=2**40, rate=50e9):
        self.calls = Counter()
        self.launched = []
        self._total, self._pinnable, self._rate = total, pinnable, rate
        self._random = random.Random(seed)
        self._memory, self._pinned = {}, {}
        self._handle = 1000
        self._streams, self._events, self._graphs, self._executables = {}, {}, {}, {}
        self._pending = []
        self._clock = 0.0
        self._capture = None

    def __getattribute__(self, name):
        if name[0].islower() and callable(found := super().__getattribute__(name)):
            self.calls[name] += 1
            return found
        return super().__getattribute__(name)

    # Memory

    def getDeviceCount(self):
        return 1

    def getDeviceProperties(self, device):
        return {"name": b"a GPU of the host's memory", "major": self.major}

    def memGetInfo(self):
        return self._total - sum(a.nbytes for a in self._memory.values()), self._total

    def malloc(self, nbytes):
        self._not_capturing()
        if nbytes > self._total - sum(a.nbytes for a in self._memory.values()):
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        return self._kept(self._memory, nbytes, 0xA5)

    def hostAlloc(self, nbytes, flags):
        self._not_capturing()
        if nbytes > self._pinnable:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        return self._kept(self._pinned, nbytes, 0x5A)

    def _kept(self, where, nbytes, byte):
        raw = np.full(nbytes + 512, byte, np.uint8)
        first = -raw.ctypes.data % 256
        where[raw.ctypes.data + first] = raw[first : first + nbytes]
        return raw.ctypes.data + first

    def free(self, pointer):
        self._finish(self._pending)
        del self._memory[pointer]

    def freeHost(self, pointer):
        self._finish(self._pending)
        del self._pinned[pointer]

    def _not_capturing(self):
        if self._capture is not None:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")

    def inside(self, pointer, nbytes, where=None):
        """Whether the bytes lie in one allocation, of the GPU by default."""
        return any(p <= pointer and pointer + nbytes <= p + a.nbytes for p, a in (where or self._memory).items())

    # Streams and events

    def _new(self):
        self._handle += 1
        return self._handle

    def streamCreateWithFlags(self, flags):
        assert flags == self.streamNonBlocking, "the default stream would order everything"
        stream = self._new()
        self._streams[stream] = []
        return stream

    def streamDestroy(self, stream):
        del self._streams[stream]

    def enqueue(self, stream, run, name=""):
        """Put work into a stream, as launching a kernel does."""
        if name:
            self.launched.append(name)
            run = self._lasting(run)
        capture = self._capture
        if capture is not None and stream in capture["streams"]:
            node = _Node(run, capture["streams"][stream])
            capture["nodes"].append(node)
            capture["streams"][stream] = [node]
            return node
        node = _Node(run, self._streams[stream])
        self._pending.append(node)
        self._streams[stream] = [node]
        return node

    def _lasting(self, kernel):
        def run():
            self._clock += KERNEL_SECONDS
            kernel()

        return run

    def eventCreateWithFlags(self, flags):
        event = self._new()
        self._events[event] = {"nodes": None, "captured": False, "at": None, "timed": flags == self.eventDefault}
        return event

    def eventDestroy(self, event):
        del self._events[event]

    def eventRecord(self, event, stream):
        found = self._events[event]
        capture = self._capture
        found["captured"] = capture is not None and stream in capture["streams"]
        if found["captured"]:
            found["nodes"] = list(capture["streams"][stream])
            return

        def reach():
            found["at"] = self._clock

        if found["timed"]:
            self.enqueue(stream, reach)
        found["nodes"] = list(self._streams[stream])

    def streamWaitEvent(self, stream, event):
        found = self._events[event]
        assert found["nodes"] is not None, "a wait for an event that was never recorded waits for nothing"
        capture = self._capture
        if found["captured"]:
            if capture is None:
                raise CUDARuntimeError("cudaErrorCapturedEvent")
            capture["streams"].setdefault(stream, [])
            capture["streams"][stream] = [*capture["streams"][stream], *found["nodes"]]
        elif capture is not None and stream in capture["streams"]:
            raise CUDARuntimeError("cudaErrorStreamCaptureIsolation")
        else:
            self._streams[stream] = [*self._streams[stream], *found["nodes"]]

    def eventSynchronize(self, event):
        self._finish(self._events[event]["nodes"] or [])

    def eventElapsedTime(self, first, last):
        return (self._events[last]["at"] - self._events[first]["at"]) * 1e3

    def streamSynchronize(self, stream):
        self._not_capturing()
        self._finish(self._streams[stream])

    def _finish(self, nodes):
        """Run what `nodes` need, and some of the rest."""
        needed, stack = set(), list(nodes)
        while stack:
            node = stack.pop()
            if not node.done and node not in needed:
                needed.add(node)
                stack += node.before
        while needed:
            ready = [n for n in self._pending if not n.done and all(b.done for b in n.before)]
            node = self._random.choice(ready)
            node.run()
            node.done, node.before = True, ()
            needed.discard(node)
        self._pending = [n for n in self._pending if not n.done]

    # Copies

    def memcpyAsync(self, target, source, nbytes, kind, stream):
        gpu, host = (target, source) if kind == self.memcpyHostToDevice else (source, target)
        assert self.inside(gpu, nbytes), "a copy outside the GPU's allocations"
        pinned = self.inside(host, nbytes, self._pinned)
        if not pinned:
            self._not_capturing()
        if not pinned and kind == self.memcpyHostToDevice:
            staged = ctypes.string_at(source, nbytes)
            self.enqueue(stream, lambda: self._move(target, staged, nbytes))
        else:
            self.enqueue(stream, lambda: self._move(target, source, nbytes))
            if not pinned:
                self.streamSynchronize(stream)

    def _move(self, target, source, nbytes):
        self._clock += nbytes / self._rate
        ctypes.memmove(target, source, nbytes)

    def memsetAsync(self, pointer, byte, nbytes, stream):
        assert self.inside(pointer, nbytes), "a fill outside the GPU's allocations"
        self.enqueue(stream, lambda: ctypes.memset(pointer, byte, nbytes))

    def pass_time(self, seconds):
        """Of a kernel that runs."""
        self._clock += seconds

    # Graphs

    def streamBeginCapture(self, stream, mode):
        self._not_capturing()
        self._capture = {"origin": stream, "streams": {stream: []}, "nodes": []}

    def streamEndCapture(self, stream):
        capture, self._capture = self._capture, None
        assert capture["origin"] == stream
        ends, stack = set(), list(capture["streams"][stream])
        while stack:
            node = stack.pop()
            if node not in ends:
                ends.add(node)
                stack += node.before
        if len(ends) < len(capture["nodes"]):
            raise CUDARuntimeError("cudaErrorStreamCaptureUnjoined")
        graph = self._new()
        self._graphs[graph] = capture["nodes"]
        return graph

    def graphInstantiate(self, graph):
        executable = self._new()
        self._executables[executable] = self._graphs[graph]
        return executable

    def graphDestroy(self, graph):
        del self._graphs[graph]

    def graphExecDestroy(self, executable):
        del self._executables[executable]

    def graphLaunch(self, executable, stream):
        begin = self.enqueue(stream, lambda: None)
        made = {}
        for node in self._executables[executable]:
            made[node] = _Node(node.run, [begin, *(made[b] for b in node.before)])
            self._pending.append(made[node])
        end = _Node(lambda: None, [begin, *made.values()])
        self._pending.append(end)
        self._streams[stream] = [end]

    @property
    def alive(self):
        """What has not been given back: streams, events, graphs, allocations."""
        kept = self._streams, self._events, self._graphs, self._executables, self._memory, self._pinned
        return sum(map(len, kept))
