"""What a plan's live bytes are for at each step, and when its passes begin and end.

Bytes are counted as `simulate` counts them: the uses of a step add up to its live bytes. Everything is decided from the
plan, its graph and its costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from ...layers.graph import STATE, Graph, Phase, Role
from .costs import CostTable
from .simulate import TransferInterval, inplace_reuses, simulate
from .steps import NO_TENSOR, Instance, Plan, Run


class Use(str, Enum):
    """What bytes are for."""

    STATE = "state"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    WORKSPACE = "workspace"
    FED = "batch and scalars"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The bytes of a training step, use by use.

    Attributes:
        edges: (steps + 1,) when each plan step begins, in seconds, and when the last one ends.
        nbytes: for each use (steps,) bytes.
        passes: for "forward", "loss" and "backward" when the pass begins and ends; a pass without steps is left out.
        repeated: (steps,) whether the plan step runs an operation again.
        transfers: the transfers in time.
    """

    edges: npt.NDArray[np.float64]
    nbytes: Mapping[Use, npt.NDArray[np.int64]]
    passes: Mapping[str, tuple[float, float]]
    repeated: npt.NDArray[np.bool_]
    transfers: tuple[TransferInterval, ...]


def measure_occupancy(plan: Plan, graph: Graph, costs: CostTable) -> Occupancy:
    """Measure what the bytes of a plan are for; updates count as part of the backward pass."""
    timeline = simulate(plan, costs)
    uses = [_classify(instance, graph) for instance in plan.instances]
    change = {use: np.zeros(len(plan.steps) + 1, np.int64) for use in Use}
    for i, use in zip(plan.instances, uses, strict=True):
        change[use][i.birth] += i.nbytes
        change[use][i.death + 1] -= i.nbytes
    live = {use: np.cumsum(steps[:-1]) for use, steps in change.items()}
    for position, old in inplace_reuses(plan):
        live[uses[old]][position] -= plan.instances[old].nbytes
    edges = np.append(timeline.starts, timeline.seconds)
    at_loss = [n for n, s in enumerate(plan.steps) if isinstance(s, Run) and graph.ops[s.op].phase is Phase.LOSS]
    begin, end = (at_loss[0], at_loss[-1] + 1) if at_loss else (len(plan.steps), len(plan.steps))
    cuts = {"forward": (0, begin), "loss": (begin, end), "backward": (end, len(plan.steps))}
    passes = {name: (float(edges[a]), float(edges[b])) for name, (a, b) in cuts.items() if a < b}
    repeated = np.array([isinstance(s, Run) and s.recompute for s in plan.steps], np.bool_)
    return Occupancy(edges, live, passes, repeated, timeline.transfers)


def _classify(instance: Instance, graph: Graph) -> Use:
    if instance.tensor == NO_TENSOR:
        return Use.WORKSPACE
    role = graph.tensors[instance.tensor].role
    if role in STATE:
        return Use.STATE
    if role is Role.ACTIVATION:
        return Use.ACTIVATIONS
    return Use.GRADIENTS if role is Role.GRADIENT else Use.FED
