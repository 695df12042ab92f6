"""What a plan costs, in bytes at each step and in seconds, decided from the plan and the cost table alone.

Three things work at once: the computation, what leaves the arena and what comes back. Each does its own work in order.
A transfer begins when the one before it in its direction is done and the computation has come to the step that begins
it; a `Wait` holds the computation up until the transfer is done. Beside a transfer the computation is slower by the
link's contention, beside two by twice that; the link's rates are those beside a computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...memory.errors import PlanError, unreachable
from .costs import CostTable
from .link import Link
from .steps import Fetch, Offload, Plan, Run, Step, Wait


@dataclass(frozen=True, slots=True)
class TransferInterval:
    """A transfer in time.

    Attributes:
        position: of the plan step that begins the transfer.
        outward: whether bytes leave the arena; otherwise they come back.
        nbytes: the bytes that are copied.
        start: when the transfer begins, in seconds.
        end: when the transfer ends, in seconds.
    """

    position: int
    outward: bool
    nbytes: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated training step.

    Attributes:
        seconds: time of the whole training step.
        starts: when the computation comes to each plan step, in seconds.
        live_bytes: bytes alive at each plan step; memory that an output takes over from an input counts once.
        peak_bytes: the most of `live_bytes`.
        stalled_seconds: how long the computation waits for transfers.
        transfers: in the order in which they are begun.
    """

    seconds: float
    starts: npt.NDArray[np.float64]
    live_bytes: npt.NDArray[np.int64]
    peak_bytes: int
    stalled_seconds: float
    transfers: tuple[TransferInterval, ...]


def inplace_reuses(plan: Plan) -> Iterator[tuple[int, int]]:
    """List each step at which an output takes over the bytes of an input, with the input's instance."""
    for position, step in enumerate(plan.steps):
        if not isinstance(step, Run):
            continue
        for new in step.outputs:
            born = plan.instances[new]
            if born.birth != position or not born.nbytes:
                continue
            for old in step.inputs:
                if (plan.instances[old].address, plan.instances[old].nbytes) == (born.address, born.nbytes):
                    yield position, old
                    break


def simulate(plan: Plan, costs: CostTable) -> Timeline:
    """Run a plan against a cost table, without computing anything.

    Raises:
        PlanError: the plan moves bytes, and the cost table has no link.
    """
    change = np.zeros(len(plan.steps) + 1, np.int64)
    for i in plan.instances:
        change[i.birth] += i.nbytes
        change[i.death + 1] -= i.nbytes
    live = np.cumsum(change[:-1])
    for position, old in inplace_reuses(plan):
        live[position] -= plan.instances[old].nbytes
    starts, transfers = time_steps(plan.steps, [i.nbytes for i in plan.copies], costs)
    stalled = float(sum(starts[n + 1] - starts[n] for n, step in enumerate(plan.steps) if isinstance(step, Wait)))
    return Timeline(float(starts[-1]), starts[:-1], live, int(live.max()) if len(live) else 0, stalled, transfers)


def time_steps(
    steps: Sequence[Step], copy_bytes: Sequence[int], costs: CostTable
) -> tuple[npt.NDArray[np.float64], tuple[TransferInterval, ...]]:
    """Time the steps of a plan.

    Args:
        steps: of the plan.
        copy_bytes: the size of each copy outside that the steps name.
        costs: kernels, seconds, and the link.

    Returns:
        When the computation comes to each step, and to the end: (steps + 1,) seconds; and the transfers.

    Raises:
        PlanError: the steps move bytes, and the cost table has no link.
    """
    starts = np.zeros(len(steps) + 1)
    if all(isinstance(step, Run) for step in steps):
        np.cumsum([costs.kernels[s.op][s.kernel].seconds for s in steps if isinstance(s, Run)], out=starts[1:])
        return starts, ()
    if costs.link is None:
        raise PlanError("plan", "transfers with a link whose speed is known", "no link")
    return _time_with_transfers(steps, copy_bytes, costs, costs.link)


def _time_with_transfers(
    steps: Sequence[Step], copy_bytes: Sequence[int], costs: CostTable, link: Link
) -> tuple[npt.NDArray[np.float64], tuple[TransferInterval, ...]]:
    starts = np.zeros(len(steps) + 1)
    now = out = inward = 0.0
    begun: dict[int, TransferInterval] = {}
    for position, step in enumerate(steps):
        starts[position] = now
        match step:
            case Run():
                now = _find_end_of_work(now, costs.kernels[step.op][step.kernel].seconds, out, inward, link.contention)
            case Offload():
                begin, nbytes = max(now, out), copy_bytes[step.copy]
                out = begin + link.out_seconds(nbytes)
                begun[position] = TransferInterval(position, True, nbytes, begin, out)
            case Fetch():
                begin, nbytes = max(now, inward), copy_bytes[step.copy]
                inward = begin + link.in_seconds(nbytes)
                begun[position] = TransferInterval(position, False, nbytes, begin, inward)
            case Wait():
                now = max(now, begun[step.transfer].end)
            case _:
                unreachable(step)
    starts[len(steps)] = now
    return starts, tuple(begun.values())


def _find_end_of_work(now: float, seconds: float, out: float, inward: float, contention: float) -> float:
    """Find when work is done that takes `seconds` alone and begins `now`, beside transfers.

    Args:
        now: when the work begins.
        seconds: of the work, without transfers beside it.
        out: until when transfers leave the arena.
        inward: until when transfers come back.
        contention: of the link.
    """
    for busy, until in ((2, min(out, inward)), (1, max(out, inward))):
        speed = 1 - busy * contention
        if until > now:
            if now + seconds / speed <= until:
                return now + seconds / speed
            seconds -= (until - now) * speed
            now = until
    return now + seconds
