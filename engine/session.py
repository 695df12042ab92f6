"""One arena, one backend, and the programs that run in it.

A program is a graph with its plan, bound to the arena: the training step, the same for a short last batch,
evaluation, prediction. All share the state at the bottom of the arena; each may use the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..layers.builder import Layer
from ..layers.graph import Tensor
from ..layers.step_scalars import compute_scalars
from ..memory.devices.device import Device
from ..memory.errors import BudgetError
from ..memory.process.heap import return_free_heap
from ..memory.tiers.tier import Tier
from ..memory.tiers.timed import Traffic
from ..scheduler.fewer_images import follow_plan
from ..scheduler.layout.problem import Problem
from ..scheduler.plan.state_layout import StateLayout, infer_layout, lay_out_state
from ..scheduler.plan.steps import Plan
from ..scheduler.plan.verify import verify
from ..scheduler.planner import make_plan
from ..scheduler.strategies import LinkUse, StrategyName, find_link_use
from .backends.backend import Backend
from .bound_programs import BoundPrograms
from .compute_threads import prepare_compute_threads
from .executor import Executor
from .planning.background_load import BackgroundLoad
from .planning.budget import Budget, BudgetChoice
from .planning.lowering import lower
from .planning.plan_file import SavedPlan, Surroundings, load_plan, require_plan_fits
from .planning.profile import estimate, measure
from .planning.shared_state import list_state, require_same_state
from .planning.spill import Spill
from .planning.timing_cache import find_cache_folder
from .programs import Mode, Planned, make_mode_graph, name_program, plan_with_kernels
from .settings import Settings

logger = logging.getLogger(__name__)

NEAR = 1.05
"""A plan with at most so many times the seconds of the lower bound is taken without a search for a faster one."""


def open_session(
    network: Layer,
    settings: Settings,
    *,
    cache: Path | None = None,
    progress: bool = False,
    plan_file: Path | None = None,
    make_tier: Callable[[int], Tier] | None = None,
) -> Session:
    """Make the backend and a session on it; no memory is taken before a program is asked for.

    Args:
        network: its layers.
        settings: the choices of the run.
        cache: folder of measured seconds and rates; None takes `find_cache_folder()`.
        progress: whether a bar is shown while kernels are timed.
        plan_file: a saved plan for full batches; None plans.
        make_tier: gives a place outside the arena of so many bytes; None takes the spill folder's, or a GPU's own.

    Raises:
        DeviceError: the backend's library is missing.
    """
    cache = find_cache_folder() if cache is None else cache
    spill = Spill(settings, cache, make_tier)
    return Session(
        network, settings, settings.make_backend(), spill, cache=cache, progress=progress, plan_file=plan_file
    )


class Session:
    """Owns the arena; makes programs when they are first asked for.

    Attributes:
        network: its layers.
        settings: the choices of the run.
        backend: what computes.
        threads: how many the backend uses.
        known_kernels: by program, the kernels that a checkpoint was trained with, to be chosen again.
        budgets: chooses how large the arena is, by the source of the batches too.
    """

    def __init__(
        self,
        network: Layer,
        settings: Settings,
        backend: Backend,
        spill: Spill,
        *,
        cache: Path | None = None,
        progress: bool = False,
        plan_file: Path | None = None,
    ) -> None:
        self.network = network
        self.settings = settings
        self.backend = backend
        self.threads = settings.count_threads()
        self.known_kernels: dict[str, tuple[str, ...]] = {}
        self._cache = cache
        self._progress = progress
        self._plan_file = plan_file
        self._saved: SavedPlan | None = None
        self.budgets = BudgetChoice(network, settings, backend)
        self._device: Device | None = None
        self._programs = BoundPrograms((Mode.TRAINING, settings.input_shape[0]))
        self._state: Mapping[str, Tensor] | None = None
        self._limits: Any = None
        self._spill = spill

    @property
    def device(self) -> Device:
        """The device, opened as `open_device` does where it is not yet open.

        Raises:
            BudgetError: the budget is more than what is free.
        """
        return self.open_device()

    def open_device(self) -> Device:
        """Open the device with the whole budget as its arena, and set the number of threads; once for all callers.

        Raises:
            BudgetError: the budget is more than what is free.
        """
        if self._device is None:
            budget = self.budget
            self._limits = prepare_compute_threads(self.threads)
            self._device = self.backend.machine.open(budget.nbytes)
        return self._device

    @property
    def budget(self) -> Budget:
        """How large the arena is and what lies outside, chosen once.

        Raises:
            BudgetError: the budget does not fit beside what the process needs.
        """
        saved = self.saved_plan
        return self.budgets.choose(None if saved is None else saved.plan.budget_bytes)

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
        return self._spill.current_tier

    @property
    def traffic(self) -> Traffic:
        """What has moved to the place outside and back so far."""
        return self._spill.traffic

    def program(self, mode: Mode, batch: int) -> tuple[Planned, Executor]:
        """Return the plan and the bound executor of `mode` for `batch` images, made where they are not at hand.

        Raises:
            BudgetError: no plan fits; names the smallest budget.
            PlanError: it reads or writes the state otherwise than the training step of a full batch does.
        """
        found = self._programs.find((mode, batch))
        if found is None:
            planned = self._make_plan(mode, batch)
            require_same_state(f"program {name_program(mode, batch)!r}", planned.graph, self._state or {})
            self.device.arena.commit(planned.plan.peak_bytes)
            tier = self._spill.open_tier(planned.plan.outside_bytes, self.device)
            executor = Executor(planned.plan, planned.graph, self.backend, self.device, tier)
            executor.bind()
            return_free_heap()
            found = planned, executor
            if self._programs.add((mode, batch), planned, executor):
                self.backend.forget()
        return found

    @property
    def problem(self) -> Problem:
        """What there is to plan for the training step of a full batch; its kernels are timed if costs are measured."""
        return self._make_problem(Mode.TRAINING, self.settings.input_shape[0])

    def _make_problem(self, mode: Mode, batch: int) -> Problem:
        device = self.open_device()  # sets the number of threads, which a kernel's workspace may depend on
        training_batch = batch == self.settings.input_shape[0] and mode is Mode.TRAINING
        layout = None if training_batch else self.state_layout
        # How the state lies is decided once: also where the training step is made again, it takes that as it is.
        graph = lower(make_mode_graph(self.network, self.settings, mode, batch), self.backend, self._state)
        self._state = self._state or list_state(graph)
        # Once there is state in the arena, nothing may be timed there any more.
        if self.settings.costs == "measured" and not self._programs and training_batch:
            costs = measure(
                graph,
                self.backend,
                device,
                threads=self.threads,
                folder=self._cache,
                scalars=compute_scalars(self.settings.optimizer, 1, self.settings.optimizer.learning_rate),
                progress=self._progress,
            )
        else:
            costs = estimate(graph, self.backend)
        layout = layout or lay_out_state(graph)
        if self._needs_link(mode, device, layout):
            here = f"{self.backend.name}/{self.backend.version()}/{self.threads} threads"
            load = BackgroundLoad(graph, costs, self.backend, here)
            costs = replace(costs, link=self._spill.find_link(device, load))
        most = self._spill.find_limit(device)
        return Problem(graph, costs, self.settings.kernels, layout, not training_batch, most)

    def _needs_link(self, mode: Mode, device: Device, layout: StateLayout) -> bool:
        """Whether a program may move tensors out of the arena or back, so that the link's speed must be known.

        A training step may where the settings say so, where the strategy can use a place of the device's own, and
        where a saved plan does. Evaluation and prediction do only where that is so and state lies outside.
        """
        if mode is not Mode.TRAINING and not layout.outside:
            return False
        saved = self.saved_plan
        uses_own_tier = device.own_tier is not None and find_link_use(self.settings.strategy) is LinkUse.OPTIONAL
        follows_transfers = saved is not None and saved.plan.outside_bytes > 0
        return self.settings.may_spill or uses_own_tier or follows_transfers

    def _make_plan(self, mode: Mode, batch: int) -> Planned:
        problem = self._make_problem(mode, batch)
        begin = time.perf_counter()
        strategy = self.settings.strategy if mode is Mode.TRAINING else StrategyName("liveness")
        here = Surroundings(self.backend.name, self.backend.version(), self.threads)
        training_batch = batch == self.settings.input_shape[0] and mode is Mode.TRAINING
        plan = self._take_saved_plan(problem, here) if training_batch else None
        name, budget = name_program(mode, batch), self.device.arena.nbytes
        if plan is None and name in self.known_kernels:
            plan = plan_with_kernels(problem, strategy, name, self.known_kernels[name], budget)
        with self.budget.explain_refusals():
            plan = plan or self._plan_within_budget(problem, strategy)
        return Planned(problem.graph, problem.costs, plan, time.perf_counter() - begin, here)

    def _plan_within_budget(self, problem: Problem, strategy: StrategyName) -> Plan:
        """Plan; a short batch does what the full one does where that is near the optimum or nothing else has room."""
        whole = self._programs.find((Mode.TRAINING, self.settings.input_shape[0]))
        followed = follow_plan(problem, whole[0].plan, whole[0].graph) if whole else None
        if followed and followed.predicted_seconds <= NEAR * followed.lower_bound_seconds:
            return followed
        try:
            return make_plan(problem, strategy, self.device.arena.nbytes)
        except BudgetError:
            if not followed:
                raise
            return followed

    def _take_saved_plan(self, problem: Problem, here: Surroundings) -> Plan | None:
        saved = self.saved_plan
        if saved is None or self._plan_file is None:
            return None
        require_plan_fits(self._plan_file, saved, problem.graph, problem.costs, here, self.device.arena.nbytes)
        layout = infer_layout(saved.plan, problem.graph)
        verify(saved.plan, problem.graph, problem.costs, layout, problem.most_outside_bytes)
        known = self.known_kernels.get(name_program(Mode.TRAINING, self.settings.input_shape[0]))
        if known is not None and known != saved.kernels:
            logger.warning("the saved plan has other kernels than the checkpoint: results may differ in bits")
        return saved.plan

    def list_kernels(self) -> Mapping[str, tuple[str, ...]]:
        """Return the kernels of every training program so far, by program, to be chosen again when a run is resumed."""
        return {**self.known_kernels, **self._programs.list_kernels()}

    def close(self) -> None:
        """Give the arena back and end the device's threads; may be called twice."""
        self._programs.clear()
        self._state = None
        if self._device is not None:
            self._device.close()  # first: it ends the transfers
            self._device = None
        self.budgets.forget()
        self._spill.close()
        self.backend.close()
        if self._limits is not None:
            self._limits.restore_original_limits()
            self._limits = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
