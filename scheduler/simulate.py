"""What a plan costs, from the plan alone: bytes at each step and seconds, independent of whoever made it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .costs import CostTable
from .plan import Plan


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated step.

    Attributes:
        seconds: of the whole step.
        starts: when each plan step begins, in seconds.
        live_bytes: at each plan step; memory that an output takes over from an input counts once.
        peak_bytes: the most of `live_bytes`.
    """

    seconds: float
    starts: npt.NDArray[np.float64]
    live_bytes: npt.NDArray[np.int64]
    peak_bytes: int


def taken_over(plan: Plan) -> Iterator[tuple[int, int]]:
    """Each step at which an output takes the bytes of an input over, and the input's instance."""
    for position, step in enumerate(plan.steps):
        for new in step.outputs:
            born = plan.instances[new]
            if born.birth != position or not born.nbytes:
                continue
            for old in step.inputs:
                if (plan.instances[old].address, plan.instances[old].nbytes) == (born.address, born.nbytes):
                    yield position, old
                    break


def simulate(plan: Plan, costs: CostTable) -> Timeline:
    """Play a plan against a cost table."""
    change = np.zeros(len(plan.steps) + 1, np.int64)
    for i in plan.instances:
        change[i.birth] += i.nbytes
        change[i.death + 1] -= i.nbytes
    live = np.cumsum(change[:-1])
    for position, old in taken_over(plan):
        live[position] -= plan.instances[old].nbytes
    seconds = np.array([costs.kernels[s.op][s.kernel].seconds for s in plan.steps], np.float64)
    ends = np.cumsum(seconds)
    return Timeline(float(ends[-1]) if len(ends) else 0.0, ends - seconds, live, int(live.max()) if len(live) else 0)
