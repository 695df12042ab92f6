"""Measuring how fast a tier is: each direction alone, both at once, and each beside a computation.

A first pass writes the bytes that the others use, in transfers that double until one takes long enough to be timed. It
finds a size of transfer that fits the link, and it makes a file system allocate what it allocates only on the first
write. Then the tier is written, read, and both at once by two threads in different halves, until one of them has no
bytes or no time left; the other then stops too, so that both are measured only while both are moving. Last, the
computation runs alone and beside each direction in turn, several times over: how much slower it is beside transfers is
the link's contention.

The first bytes of the tier are overwritten. Those in memory keep their values, because every transfer reads back what
was written from there. Nothing is remembered between calls. It is not checked that the bytes are hard to compress,
which matters for a disk that compresses.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..sizes import format_size_exact
from ..tiers.tier import TIER_ALIGNMENT, Tier

_SPAN_BYTES = 64 * 2**20
_PHASE_BYTES = 96 * 2**20
_SMALLEST_TRANSFER = 64 * 2**10
_LARGEST_TRANSFER = 8 * 2**20
_PHASES = 4
_ROUNDS = 3
"""How often the computation is timed alone and beside each direction; the median counts."""
_BESIDE_BYTES = 256 * 2**20
"""The most bytes that are moved beside a computation, whose pieces may take long."""
_TRANSFERS_A_PHASE = 8
"""How many transfers of the chosen size a phase has time for: fewer would measure the edges."""

_Move = Callable[[int, npt.NDArray[np.uint8]], None]

Computation = Callable[[], float]
"""A piece of computation; returns how much it computed, in seconds that it takes alone or in any other unit."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What a link between an arena and a tier moves, in bytes per second.

    Attributes:
        out: arena to tier, alone.
        inward: tier to arena, alone.
        out_together: arena to tier, while the other direction is busy too.
        inward_together: tier to arena, while the other direction is busy too.
        out_beside: arena to tier, beside a computation; without one, as alone.
        inward_beside: tier to arena, beside a computation; without one, as alone.
        contention: seconds that the computation loses for each second of a transfer beside it, at least 0 and below 1.
    """

    out: float
    inward: float
    out_together: float
    inward_together: float
    out_beside: float
    inward_beside: float
    contention: float


def measure_link(
    tier: Tier,
    memory: npt.NDArray[np.uint8],
    work: Computation | None = None,
    *,
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Bandwidth:
    """Measure the bandwidth between `memory`, such as a view of an arena, and `tier`.

    At most 448 MiB are moved, and beside a computation at most 1.5 GiB more.

    Args:
        tier: nothing in it may be needed; at most its first 64 MiB are used.
        memory: at most its first 64 MiB are used; unchanged afterwards.
        work: computes beside the transfers, in the caller's thread.
        seconds: roughly how long measuring takes without `work`, and how much longer with it. A link that moves less
            than 64 KiB in a fourth of this time takes longer, and so does work in longer pieces.
        clock: returns the time in seconds.

    Raises:
        ConfigError: the tier or the memory holds fewer than 8192 bytes.
        DeviceError: the tier failed.
    """
    span = min(tier.nbytes, memory.nbytes, _SPAN_BYTES) // (2 * TIER_ALIGNMENT) * (2 * TIER_ALIGNMENT)
    if span == 0:
        least = f"at least {format_size_exact(2 * TIER_ALIGNMENT)} in the tier and in memory"
        raise ConfigError(f"bandwidth of tier {tier.name!r}", least, f"{tier.nbytes} and {memory.nbytes} bytes")
    phase_seconds = seconds / _PHASES
    written, size = _prepare(tier, memory[:span], phase_seconds, clock)
    half = written // (2 * TIER_ALIGNMENT) * TIER_ALIGNMENT
    whole, low, high = range(0, written), range(0, half), range(half, 2 * half)
    out = _measure(_Transfers(tier.write, memory, whole, size), phase_seconds, clock, threading.Event())
    inward = _measure(_Transfers(tier.read, memory, whole, size), phase_seconds, clock, threading.Event())
    stop = threading.Event()
    size = min(size, half)
    writes, reads = _Transfers(tier.write, memory, low, size), _Transfers(tier.read, memory, high, size)
    with ThreadPoolExecutor(1, thread_name_prefix="bathyal-bandwidth") as pool:
        reading = pool.submit(_measure, reads, phase_seconds, clock, stop)
        out_together = _measure(writes, phase_seconds, clock, stop)
        inward_together = reading.result()
    if work is None:
        return Bandwidth(out, inward, out_together, inward_together, out, inward, 0.0)
    rounds = []
    for _ in range(_ROUNDS):
        share = seconds / (4 * _ROUNDS)
        alone = _speed(work, share, clock, threading.Event())
        beside = [_measure_beside(transfers, work, share, clock) for transfers in (writes, reads)]
        kept = sum(speed for _, speed in beside) / (2 * alone) if alone else 1.0
        rounds.append((*(rate for rate, _ in beside), 1 - kept))
    out_beside, inward_beside, contention = (statistics.median(column) for column in zip(*rounds, strict=True))
    return Bandwidth(
        out, inward, out_together, inward_together, out_beside, inward_beside, min(max(contention, 0.0), 0.99)
    )


@dataclass(frozen=True, slots=True)
class _Transfers:
    """Transfers of at most `size` bytes, by `move`, between `memory` and the tier over the addresses `place`."""

    move: _Move
    memory: npt.NDArray[np.uint8]
    place: range
    size: int

    def run_endlessly(self) -> Iterator[int]:
        """Make one transfer after another, beginning anew at the end of `place`, and yield the bytes of each."""
        while True:
            for first in range(self.place.start, self.place.stop, self.size):
                end = min(first + self.size, self.place.stop)
                self.move(first, self.memory[first:end])
                yield end - first


def _measure_beside(
    transfers: _Transfers, work: Computation, seconds: float, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return the bytes per second of transfers, and the work per second beside them."""
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="bathyal-bandwidth") as pool:
        moving = pool.submit(_measure, transfers, seconds, clock, stop, _BESIDE_BYTES)
        speed = _speed(work, seconds, clock, stop)
        return moving.result(), speed


def _speed(work: Computation, seconds: float, clock: Callable[[], float], stop: threading.Event) -> float:
    """Return the work per second, done in pieces, at least one, until the time is over or `stop` is set; set `stop`."""
    begin = clock()
    done, now = work(), clock()
    while now - begin < seconds and not stop.is_set():
        done += work()
        now = clock()
    stop.set()
    return done / max(now - begin, 1e-9)


def _prepare(tier: Tier, memory: npt.NDArray[np.uint8], seconds: float, clock: Callable[[], float]) -> tuple[int, int]:
    """Write `memory` to the tier as far as time allows; return how many bytes, and a size for the transfers."""
    begin = clock()
    size, first, largest = _SMALLEST_TRANSFER, 0, 0
    while first < memory.nbytes and (first < 2 * TIER_ALIGNMENT or clock() - begin < seconds):
        nbytes = min(size, memory.nbytes - first)
        started = clock()
        tier.write(first, memory[first : first + nbytes])
        first += nbytes
        if clock() - started < seconds / _TRANSFERS_A_PHASE:
            largest = max(largest, nbytes)
            size = min(2 * size, _LARGEST_TRANSFER)
    return first, largest or min(_SMALLEST_TRANSFER, first)


def _measure(
    transfers: _Transfers,
    seconds: float,
    clock: Callable[[], float],
    stop: threading.Event,
    most_bytes: int = _PHASE_BYTES,
) -> float:
    """Return the bytes per second of transfers, until time or bytes are used up or `stop` is set; set `stop` then."""
    moved = 0
    begin = now = clock()
    for nbytes in transfers.run_endlessly():
        moved += nbytes
        now = clock()
        if now - begin >= seconds or moved >= most_bytes or stop.is_set():
            break
    stop.set()
    return moved / max(now - begin, 1e-9)
