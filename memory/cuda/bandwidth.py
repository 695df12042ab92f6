"""How fast a GPU moves bytes to pinned memory and back: each direction alone, both at once, and beside a computation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..devices.bandwidth import Bandwidth, Computation
from .runtime import CudaRuntime
from .streams import CudaQueue, timed

COPIES = 4
"""Of the whole tier, for a figure."""
COMPUTED_SECONDS = 0.05
"""Of the computation that transfers are timed beside, at least."""
MOST_PIECES = 4096

Copies = Callable[[int], None]
"""Puts so many copies into its stream."""


def measure_streams(
    runtime: CudaRuntime,
    nbytes: int,
    compute: CudaQueue,
    leaving: tuple[CudaQueue, Copies],
    coming: tuple[CudaQueue, Copies],
    work: Computation | None,
) -> Bandwidth:
    """Time copies by events.

    Args:
        runtime: of the queues.
        nbytes: of a copy.
        compute: the queue that `work` computes in.
        leaving: the queue of one direction, and what puts copies into it.
        coming: the same of the other.
        work: launches a piece of computation; None measures nothing beside one.
    """
    directions = (leaving, coming)
    for _, copy in directions:
        copy(1)  # the first copy of a pinned page is slower
    rates = [COPIES * nbytes / timed(runtime, [(queue, partial(copy, COPIES))])[0] for queue, copy in directions]
    both = timed(runtime, [(queue, partial(copy, COPIES)) for queue, copy in directions])
    together = [COPIES * nbytes / seconds for seconds in both]
    if work is None:
        return Bandwidth(rates[0], rates[1], together[0], together[1], rates[0], rates[1], 0.0)
    pieces, alone = 1, 0.0
    while alone < COMPUTED_SECONDS and pieces < MOST_PIECES:
        pieces *= 2
        alone = timed(runtime, [(compute, partial(_repeat, work, pieces))])[0]
    beside, kept = [], 0.0
    for (queue, copy), rate in zip(directions, rates, strict=True):
        copies = max(1, round(alone * rate / nbytes))
        launches = [(compute, partial(_repeat, work, pieces)), (queue, partial(copy, copies))]
        computed, moved = timed(runtime, launches)
        beside.append(copies * nbytes / moved)
        kept += alone / max(computed, alone, 1e-9) / 2
    return Bandwidth(rates[0], rates[1], together[0], together[1], beside[0], beside[1], min(1 - kept, 0.99))


def _repeat(work: Computation, pieces: int) -> None:
    for _ in range(pieces):
        work()
