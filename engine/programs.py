"""What a session runs: graphs of a training step, of evaluation and of prediction, each with its plan.

Decides which graph belongs to a mode and a number of images, and under which name its kernels are kept. Plans are made
elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layers.builder import Layer, forward_graph
from ..layers.graph import Graph
from ..layers.modes import IMAGES, LABELS, RANDOM_KEY, SCALARS, evaluation_graph, prediction_graph, training_graph
from ..layers.slabs import split_large
from ..memory.errors import BudgetError
from ..scheduler.layout.problem import Problem
from ..scheduler.plan.costs import CostTable
from ..scheduler.plan.explain import explain
from ..scheduler.plan.steps import Plan
from ..scheduler.planner import make_plan
from ..scheduler.strategies import StrategyName
from .planning.plan_file import Surroundings, save_plan
from .settings import Settings

logger = logging.getLogger(__name__)


class Mode(str, Enum):
    """What a program computes."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


def name_program(mode: Mode, batch: int) -> str:
    """Return the name of a program in a checkpoint."""
    return f"{mode.value} {batch}"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what it was made from.

    Attributes:
        graph: lowered.
        costs: kernels and seconds.
        plan: verified.
        planning_seconds: time that planning took.
        surroundings: what the kernels belong to.
    """

    graph: Graph
    costs: CostTable
    plan: Plan
    planning_seconds: float
    surroundings: Surroundings

    def explain(self) -> str:
        """Return the plan in words and tables."""
        return explain(self.plan, self.graph, self.costs)

    def save(self, path: Path) -> None:
        """Write the plan to a file; see `plan_file.save_plan`."""
        save_plan(path, self.plan, self.graph, self.surroundings, self.kernel_names)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Name of the kernel that each operation uses, by operation id."""
        chosen = {step.op: step.kernel for step in self.plan.runs}
        return tuple(self.costs.kernels[op.id][chosen[op.id]].name for op in self.graph.ops)


def make_mode_graph(network: Layer, settings: Settings, mode: Mode, batch: int) -> Graph:
    """Make the graph of one mode for `batch` images, not lowered; its large parameters are slabs."""
    forward = split_large(forward_graph(network, (batch, *settings.input_shape[1:]), settings.dtype))
    if mode is Mode.TRAINING:
        return training_graph(forward, settings.optimizer, settings.loss)
    return evaluation_graph(forward, settings.loss) if mode is Mode.EVALUATION else prediction_graph(forward)


def make_training_feeds(
    images: npt.NDArray[Any], labels: npt.NDArray[Any], scalars: npt.NDArray[np.float64], seed: int, step: int
) -> dict[str, npt.NDArray[Any]]:
    """Return what the host writes before a training step, by name of its tensor.

    Args:
        images: checked, of the network's type.
        labels: the target of the loss.
        scalars: from `compute_scalars`.
        seed: of the run.
        step: steps done so far; with the seed it decides what dropout draws.
    """
    return {IMAGES: images, LABELS: labels, SCALARS: scalars, RANDOM_KEY: np.array([seed, step], np.int64)}


def plan_with_kernels(
    problem: Problem, strategy: StrategyName, name: str, kernels: Sequence[str], budget_bytes: int
) -> Plan | None:
    """Return a plan of a program with the kernels of a checkpoint; None, with a warning, where there is none."""
    costs = restrict_kernels(problem.costs, problem.graph, kernels)
    if costs is None:
        logger.warning("the %s step has other kernels now than in the checkpoint: results may differ in bits", name)
        return None
    try:
        return make_plan(replace(problem, costs=costs), strategy, budget_bytes)
    except BudgetError as error:
        logger.warning("the kernels of the checkpoint do not fit (%s): results may differ in bits", error)
        return None


def restrict_kernels(costs: CostTable, graph: Graph, names: Sequence[str]) -> CostTable | None:
    """Return the table with the named kernel alone for each operation, or None where a name is unknown."""
    if len(names) != len(graph.ops):
        return None
    rows = []
    for row, name in zip(costs.kernels, names, strict=True):
        # Indices must stay those of the backend: the others are priced out, not removed.
        if name not in [k.name for k in row]:
            return None
        rows.append(
            tuple(k if k.name == name else replace(k, seconds=float("inf"), workspace_bytes=2**62) for k in row)
        )
    return replace(costs, kernels=tuple(rows))
