"""One arena, one backend, and the programs that run in it.

A program is a graph with its plan, bound to the arena: the training step, the same for a short last batch,
evaluation, prediction. All share the state at the bottom of the arena; each may use the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ..layers.builder import Layer
from ..layers.modes import IMAGES
from ..layers.step_scalars import compute_scalars
from ..memory.devices.device import Device
from ..memory.errors import BudgetError
from ..memory.process.heap import return_free_heap
from ..memory.tiers.tier import Tier
from ..memory.tiers.timed import Traffic
from ..scheduler.layout.problem import Problem
from ..scheduler.plan.state_layout import StateLayout, infer_layout, lay_out_state
from ..scheduler.plan.steps import Plan
from ..scheduler.plan.verify import verify
from ..scheduler.planner import make_plan
from ..scheduler.strategies import LinkUse, StrategyName, find_link_use
from .backends.backend import Backend
from .executor import Executor
from .planning.background_load import BackgroundLoad
from .planning.budget import Budget, BudgetChoice
from .planning.lowering import lower
from .planning.plan_file import SavedPlan, Surroundings, load_plan, require_plan_fits
from .planning.profile import estimate, measure
from .planning.spill import Spill
from .planning.timing_cache import find_cache_folder
from .programs import Mode, Planned, make_mode_graph, name_program, restrict_kernels
from .settings import Settings

logger = logging.getLogger(__name__)


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
        self._programs: dict[tuple[Mode, int], tuple[Planned, Executor]] = {}
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
            self._limits = threadpool_limits(self.threads)
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
        """Return the plan and the bound executor of `mode` for `batch` images, made when first asked for.

        Raises:
            BudgetError: no plan fits; names the smallest budget.
        """
        key = (mode, batch)
        if key not in self._programs:
            planned = self._make_plan(mode, batch)
            self.device.arena.commit(planned.plan.peak_bytes)
            tier = self._spill.open_tier(planned.plan.outside_bytes, self.device)
            executor = Executor(planned.plan, planned.graph, self.backend, self.device, tier)
            executor.bind()
            return_free_heap()
            self._programs[key] = (planned, executor)
        return self._programs[key]

    @property
    def problem(self) -> Problem:
        """What there is to plan for the training step of a full batch; its kernels are timed if costs are measured."""
        return self._make_problem(Mode.TRAINING, self.settings.input_shape[0])

    def _make_problem(self, mode: Mode, batch: int) -> Problem:
        device = self.open_device()  # sets the number of threads, which a kernel's workspace may depend on
        graph = lower(make_mode_graph(self.network, self.settings, mode, batch), self.backend)
        training_batch = batch == self.settings.input_shape[0] and mode is Mode.TRAINING
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
        layout = lay_out_state(graph) if training_batch else self.state_layout
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
        plan = plan or self._plan_with_known_kernels(problem, strategy, name_program(mode, batch))
        with self.budget.explain_refusals():
            plan = plan or make_plan(problem, strategy, self.device.arena.nbytes)
        return Planned(problem.graph, problem.costs, plan, time.perf_counter() - begin, here)

    def _take_saved_plan(self, problem: Problem, here: Surroundings) -> Plan | None:
        saved = self.saved_plan
        if saved is None or self._plan_file is None:
            return None
        require_plan_fits(self._plan_file, saved, problem.graph, problem.costs, here, self.device.arena.nbytes)
        verify(saved.plan, problem.graph, problem.costs, infer_layout(saved.plan, problem.graph))
        known = self.known_kernels.get(name_program(Mode.TRAINING, self.settings.input_shape[0]))
        if known is not None and known != saved.kernels:
            logger.warning("the saved plan has other kernels than the checkpoint: results may differ in bits")
        return saved.plan

    def _plan_with_known_kernels(self, problem: Problem, strategy: StrategyName, key: str) -> Plan | None:
        if key not in self.known_kernels:
            return None
        costs = restrict_kernels(problem.costs, problem.graph, self.known_kernels[key])
        if costs is None:
            logger.warning("the %s step has other kernels now than in the checkpoint: results may differ in bits", key)
            return None
        try:
            return make_plan(replace(problem, costs=costs), strategy, self.device.arena.nbytes)
        except BudgetError as error:
            logger.warning("the kernels of the checkpoint do not fit (%s): results may differ in bits", error)
            return None

    def run_in_parts(
        self, mode: Mode, batch: Mapping[str, npt.NDArray[Any]]
    ) -> Iterator[tuple[dict[str, npt.NDArray[Any]], int]]:
        """Run a batch in as few parts as the budget allows: one that trains in little memory may not evaluate whole.

        Args:
            mode: evaluation or prediction.
            batch: what is fed, by name of its tensor.

        Yields:
            what the program makes of each part, by name, and how many images the part has.

        Raises:
            BudgetError: not even one image fits.
        """
        count = size = len(batch[IMAGES])
        while True:
            try:
                self.program(mode, size)
                break
            except BudgetError:
                if size == 1:
                    raise
                size = -(-size // 2)
        for start in range(0, count, size):
            part = {name: values[start : start + size] for name, values in batch.items()}
            images = len(part[IMAGES])
            _, executor = self.program(mode, images)
            yield executor.run(part), images

    def list_kernels(self) -> Mapping[str, tuple[str, ...]]:
        """Return the kernels of every training program so far, by program, to be chosen again when a run is resumed."""
        made = {
            name_program(mode, batch): planned.kernel_names
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
