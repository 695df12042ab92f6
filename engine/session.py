"""One arena, one backend, and the programs that run in it.

A program is a graph with its plan, bound to the arena: the training step, the same for a short last batch,
evaluation, prediction. All share the state at the bottom of the arena; each may use the rest.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ..layers.builder import Layer, forward_graph
from ..layers.graph import Graph
from ..layers.modes import evaluation_graph, prediction_graph, training_graph
from ..layers.slabs import split_large
from ..memory.devices.device import Device
from ..memory.errors import BudgetError
from ..memory.sizes import format_size, format_size_exact, parse_size
from ..memory.tiers.tier import Tier
from ..memory.tiers.timed import Traffic
from ..scheduler.layout.kernels import Kernels
from ..scheduler.layout.problem import Problem
from ..scheduler.plan.costs import CostTable
from ..scheduler.plan.explain import explain
from ..scheduler.plan.link import parse_link
from ..scheduler.plan.state_layout import StateLayout, infer_layout, lay_out_state
from ..scheduler.plan.steps import Plan
from ..scheduler.plan.verify import verify
from ..scheduler.planner import make_plan
from ..scheduler.strategies.names import find_link_use
from ..scheduler.strategies.strategy import LinkUse
from .backends.backend import Backend
from .executor import Executor
from .planning.background_load import Load
from .planning.lowering import lower
from .planning.plan_file import SavedPlan, Surroundings, load_plan, require_match, save_plan
from .planning.profile import estimate, measure
from .planning.spill import Spill
from .planning.timing_cache import cache_folder
from .settings import Settings, usable_cores

logger = logging.getLogger(__name__)


class Mode(str, Enum):
    """What a program computes."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


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
        """The plan in words and tables."""
        return explain(self.plan, self.graph, self.costs)

    def save(self, path: Path) -> None:
        """Write the plan to a file; see `plan_file.save_plan`."""
        save_plan(path, self.plan, self.graph, self.surroundings, self.kernel_names)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Name of the kernel that each operation uses, by operation id."""
        chosen = {step.op: step.kernel for step in self.plan.runs}
        return tuple(self.costs.kernels[op.id][chosen[op.id]].name for op in self.graph.ops)


def mode_graph(network: Layer, settings: Settings, mode: Mode, batch: int) -> Graph:
    """The graph of one mode for `batch` images, not lowered; its large parameters are slabs."""
    forward = split_large(forward_graph(network, (batch, *settings.input_shape[1:]), settings.dtype))
    if mode is Mode.TRAINING:
        return training_graph(forward, settings.optimizer)
    return evaluation_graph(forward) if mode is Mode.EVALUATION else prediction_graph(forward)


def only_kernels(costs: CostTable, graph: Graph, names: Sequence[str]) -> CostTable | None:
    """The table with the named kernel alone for each operation, or None where a name is unknown."""
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


def problem_without_memory(
    network: Layer, settings: Settings, mode: Mode = Mode.TRAINING
) -> tuple[Problem, Surroundings]:
    """What there is to plan, by analytic costs and without an arena: networks of any size."""
    backend = settings.make_backend()
    threads = settings.threads or usable_cores()
    # A kernel's workspace may depend on the number of threads.
    with threadpool_limits(threads):
        surroundings = Surroundings(backend.name, backend.version(), threads)
        graph = lower(mode_graph(network, settings, mode, settings.input_shape[0]), backend)
        costs = estimate(graph, backend)
    if settings.link is not None:
        costs = replace(costs, link=parse_link(settings.link))
    most = settings.most_outside_bytes
    problem = Problem(graph, costs, Kernels(settings.kernels), lay_out_state(graph), most_outside_bytes=most)
    return problem, surroundings


def plan_without_memory(network: Layer, settings: Settings, budget_bytes: int, mode: Mode = Mode.TRAINING) -> Planned:
    """Plan for `budget_bytes` by analytic costs, without an arena: networks and budgets of any size."""
    begin = time.perf_counter()
    problem, surroundings = problem_without_memory(network, settings, mode)
    plan = make_plan(problem, settings.strategy, budget_bytes)
    return Planned(problem.graph, problem.costs, plan, time.perf_counter() - begin, surroundings)


def plan_alone(network: Layer, settings: Settings, budget_bytes: int, *, progress: bool = False) -> Planned:
    """Plan a training step as a session does, timing kernels and disk where that is asked for, but bind nothing."""
    session = Session(network, settings, progress=progress)
    try:
        problem = session.problem
        here = Surroundings(session.backend.name, session.backend.version(), session.threads)
    finally:
        session.close()
    begin = time.perf_counter()
    plan = make_plan(problem, settings.strategy, budget_bytes)
    return Planned(problem.graph, problem.costs, plan, time.perf_counter() - begin, here)


class Session:
    """Owns the arena; makes programs when they are first asked for."""

    def __init__(
        self,
        network: Layer,
        settings: Settings,
        *,
        cache: Path | None = None,
        progress: bool = False,
        plan_file: Path | None = None,
        make_tier: Callable[[int], Tier] | None = None,
    ) -> None:
        self.network = network
        self.settings = settings
        self.backend: Backend = settings.make_backend()
        self.threads = settings.threads or usable_cores()
        self.known_kernels: dict[str, tuple[str, ...]] = {}
        self._cache = cache or cache_folder()
        self._progress = progress
        self._plan_file = plan_file
        self._saved: SavedPlan | None = None
        self._device: Device | None = None
        self._programs: dict[tuple[Mode, int], tuple[Planned, Executor]] = {}
        self._limits: Any = None
        self._spill = Spill(settings, self._cache, make_tier)

    @property
    def device(self) -> Device:
        """The device; opens it with the whole budget as its arena on first use.

        Raises:
            BudgetError: the budget is more than what is free.
            ConfigError: the budget is not a size.
        """
        if self._device is None:
            budget = self._budget()
            self._limits = threadpool_limits(self.threads)
            self._device = self.backend.machine.open(budget)
        return self._device

    def _budget(self) -> int:
        free = self.backend.machine.free_bytes()
        # Planning takes memory and time by the image: a batch that can never be must not get that far.
        batch_bytes = math.prod(self.settings.input_shape) * np.dtype(self.settings.dtype).itemsize
        if batch_bytes > free:
            raise BudgetError(
                "input_shape",
                f"a batch of at most the {format_size_exact(free)} that are free",
                f"{self.settings.input_shape}, {format_size_exact(batch_bytes)}",
                "Give a smaller batch or smaller images.",
            )
        saved, memory = self.saved_plan, self.settings.memory
        if memory is None:
            return (
                self.backend.machine.default_budget() if saved is None else self._within(saved.plan.budget_bytes, free)
            )
        return self._within(parse_size(memory), free)

    def _within(self, budget: int, free: int) -> int:
        if budget > free:
            raise BudgetError(
                "memory",
                f"at most the {free} bytes ({format_size(free)}) that are free",
                f"{budget} bytes ({format_size(budget)})",
                "Give less, or end other programs.",
            )
        return budget

    @property
    def saved_plan(self) -> SavedPlan | None:
        """What the plan file holds, where one was given; read once.

        Raises:
            PlanError: it cannot be read.
        """
        if self._saved is None and self._plan_file is not None:
            self._saved = load_plan(self._plan_file)
        return self._saved

    @property
    def training(self) -> Planned:
        """The plan of the training step for a full batch."""
        return self.program(Mode.TRAINING, self.settings.input_shape[0])[0]

    @property
    def state_layout(self) -> StateLayout:
        """Where the state lies, the same for all programs: as the training step of a full batch has it."""
        return infer_layout(self.training.plan, self.training.graph)

    @property
    def tier(self) -> Tier | None:
        """The place outside the arena; None where nothing is there."""
        return self._spill.opened

    @property
    def traffic(self) -> Traffic:
        """What has moved to the place outside and back so far."""
        return self._spill.traffic

    def program(self, mode: Mode, batch: int) -> tuple[Planned, Executor]:
        """The plan and the bound executor of `mode` for `batch` images.

        Raises:
            BudgetError: no plan fits; names the smallest budget.
        """
        key = (mode, batch)
        if key not in self._programs:
            planned = self._plan(mode, batch)
            self.device.arena.commit(planned.plan.peak_bytes)
            tier = self._spill.tier(planned.plan.outside_bytes, self.device)
            executor = Executor(planned.plan, planned.graph, self.backend, self.device, tier)
            executor.bind()
            self._programs[key] = (planned, executor)
        return self._programs[key]

    @property
    def problem(self) -> Problem:
        """What there is to plan for the training step of a full batch; its kernels are timed if costs are measured."""
        return self._problem(Mode.TRAINING, self.settings.input_shape[0])

    def _problem(self, mode: Mode, batch: int) -> Problem:
        device = self.device  # sets the number of threads, which a kernel's workspace may depend on
        graph = lower(mode_graph(self.network, self.settings, mode, batch), self.backend)
        training_batch = batch == self.settings.input_shape[0] and mode is Mode.TRAINING
        # Once there is state in the arena, nothing may be timed there any more.
        if self.settings.costs == "measured" and not self._programs and training_batch:
            costs = measure(
                graph,
                self.backend,
                device,
                threads=self.threads,
                folder=self._cache,
                progress=self._progress,
            )
        else:
            costs = estimate(graph, self.backend)
        layout = lay_out_state(graph) if training_batch else self.state_layout
        saved = self.saved_plan
        own = device.own_tier is not None and find_link_use(self.settings.strategy) is LinkUse.OPTIONAL
        spills = self.settings.spills or own or (saved is not None and saved.plan.outside_bytes)
        if spills and (mode is Mode.TRAINING or layout.outside):
            here = f"{self.backend.name}/{self.backend.version()}/{self.threads} threads"
            load = Load(graph, costs, self.backend, here)
            costs = replace(costs, link=self._spill.link(device, load))
        most = self._spill.most_bytes(device)
        return Problem(graph, costs, Kernels(self.settings.kernels), layout, not training_batch, most)

    def _plan(self, mode: Mode, batch: int) -> Planned:
        problem = self._problem(mode, batch)
        begin = time.perf_counter()
        strategy = self.settings.strategy if mode is Mode.TRAINING else "liveness"
        here = Surroundings(self.backend.name, self.backend.version(), self.threads)
        training_batch = batch == self.settings.input_shape[0] and mode is Mode.TRAINING
        plan = self._checked_saved_plan(problem, here) if training_batch else None
        plan = plan or self._plan_with_known_kernels(problem, strategy, kernel_key(mode, batch))
        plan = plan or make_plan(problem, strategy, self.device.arena.nbytes)
        return Planned(problem.graph, problem.costs, plan, time.perf_counter() - begin, here)

    def _checked_saved_plan(self, problem: Problem, here: Surroundings) -> Plan | None:
        saved = self.saved_plan
        if saved is None or self._plan_file is None:
            return None
        require_match(self._plan_file, saved, problem.graph, problem.costs, here, self.device.arena.nbytes)
        verify(saved.plan, problem.graph, problem.costs, infer_layout(saved.plan, problem.graph))
        known = self.known_kernels.get(kernel_key(Mode.TRAINING, self.settings.input_shape[0]))
        if known is not None and known != saved.kernels:
            logger.warning("the saved plan has other kernels than the checkpoint: results may differ in bits")
        return saved.plan

    def _plan_with_known_kernels(self, problem: Problem, strategy: str, key: str) -> Plan | None:
        if key not in self.known_kernels:
            return None
        costs = only_kernels(problem.costs, problem.graph, self.known_kernels[key])
        if costs is None:
            logger.warning("the %s step has other kernels now than in the checkpoint: results may differ in bits", key)
            return None
        try:
            return make_plan(replace(problem, costs=costs), strategy, self.device.arena.nbytes)
        except BudgetError as error:
            logger.warning("the kernels of the checkpoint do not fit (%s): results may differ in bits", error)
            return None

    def kernels(self) -> Mapping[str, tuple[str, ...]]:
        """The kernels of every training program so far, to be chosen again when a run is resumed."""
        made = {
            kernel_key(mode, batch): planned.kernel_names
            for (mode, batch), (planned, _) in self._programs.items()
            if mode is Mode.TRAINING
        }
        return {**self.known_kernels, **made}

    def close(self) -> None:
        """Give the arena back and end the device's threads; may be called twice."""
        self._programs.clear()
        if self._device is not None:
            self._device.close()  # first: it ends the transfers
            self._device = None
        self._spill.close()
        self.backend.close()
        if self._limits is not None:
            self._limits.restore_original_limits()
            self._limits = None


def kernel_key(mode: Mode, batch: int) -> str:
    """Name of a program in a checkpoint."""
    return f"{mode.value} {batch}"
