"""Measuring how fast a GPU reaches pinned memory: each direction alone, both at once, and beside a computation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..devices.bandwidth import Bandwidth, Computation
from .runtime import CudaRuntime
from .streams import CudaQueue, time_launches

COPIES = 4
"""How many copies of the whole tier are timed together."""
COMPUTED_SECONDS = 0.05
"""How long the computation beside transfers takes at least."""
MOST_PIECES = 4096
"""How many pieces that computation has at most."""

Copies = Callable[[int], None]
"""Puts a number of copies into its stream."""


def measure_streams(
    runtime: CudaRuntime,
    nbytes: int,
    compute: CudaQueue,
    leaving: tuple[CudaQueue, Copies],
    coming: tuple[CudaQueue, Copies],
    work: Computation | None,
) -> Bandwidth:
    """Time copies in both directions by events in their streams.

    Args:
        runtime: the runtime that the queues belong to.
        nbytes: size of a copy.
        compute: the queue that `work` computes in.
        leaving: the queue of copies to the tier, and the function that puts copies into it.
        coming: the queue of copies from the tier, and the function that puts copies into it.
        work: launches a piece of computation; with None nothing is measured beside one.
    """
    directions = (leaving, coming)
    for _, copy in directions:
        copy(1)  # the first copy of a pinned page is slower
    rates = [
        COPIES * nbytes / time_launches(runtime, [(queue, partial(copy, COPIES))])[0] for queue, copy in directions
    ]
    both = time_launches(runtime, [(queue, partial(copy, COPIES)) for queue, copy in directions])
    together = [COPIES * nbytes / seconds for seconds in both]
    if work is None:
        return Bandwidth(rates[0], rates[1], together[0], together[1], rates[0], rates[1], 0.0)
    pieces, alone = 1, 0.0
    while alone < COMPUTED_SECONDS and pieces < MOST_PIECES:
        pieces *= 2
        alone = time_launches(runtime, [(compute, partial(_repeat, work, pieces))])[0]
    beside, kept = [], 0.0
    for (queue, copy), rate in zip(directions, rates, strict=True):
        copies = max(1, round(alone * rate / nbytes))
        launches = [(compute, partial(_repeat, work, pieces)), (queue, partial(copy, copies))]
        computed, moved = time_launches(runtime, launches)
        beside.append(copies * nbytes / moved)
        kept += alone / max(computed, alone, 1e-9) / 2
    return Bandwidth(rates[0], rates[1], together[0], together[1], beside[0], beside[1], min(1 - kept, 0.99))


def _repeat(work: Computation, pieces: int) -> None:
    for _ in range(pieces):
        work()
