"""Training, evaluation, prediction: the loop around the programs of a session.

The trainer counts steps, epochs and batches, feeds batches and step scalars, and saves and restores all of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..layers.builder import Layer, require_layer
from ..layers.losses.loss import Target
from ..layers.modes import CORRECT, LOSS
from ..layers.step_scalars import compute_scalars
from ..memory.arguments import Switch
from ..memory.errors import ConfigError, DataError
from ..memory.tiers.tier import Tier
from ..scheduler.plan.steps import Plan
from .checkpoints.run import Progress, find_run, read_kernels, read_progress, read_state, save_run
from .data.checks import as_batch
from .data.sources import FromIterable, Source
from .evaluation import evaluate_batches, predict_outputs
from .finite import run_step
from .fitting import start_fitting
from .interrupts import hold_back_interrupts
from .learned_state import LearnedState
from .learning_rate import LearningRate, find_rate, require_learning_rate
from .programs import Mode, Planned, make_training_feeds
from .results import Evaluation, StepResult, Watch, count_shares
from .session import open_session
from .settings import Choices, Settings, parse_path, require_known, take_earlier_name
from .state import State
from .targets import Targets

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]


class Trainer:
    """A network, a budget, and the steps in between.

    Memory is taken and the plan is made when first needed: by `plan`, `fit`, `evaluate`, `predict` or `save`.
    """

    def __init__(
        self,
        network: Layer,
        input_shape: Sequence[int],
        *,
        learning_rate: LearningRate | None = None,
        cache: Path | str | None = None,
        progress: bool = False,
        plan: Path | str | None = None,
        make_tier: Callable[[int], Tier] | None = None,
        backend: str | None = None,
        **choices: Unpack[Choices],
    ) -> None:
        """Store what to train and how.

        Args:
            network: its layers.
            input_shape: (N, C, H, W) of a full batch.
            learning_rate: the optimizer's by default; a function of the steps done for a schedule.
            cache: folder for measured seconds.
            progress: whether bars are shown while profiling.
            plan: file of a plan for full batches, written by `save_plan` or `bathyal plan --save-plan`; without
                `memory` its budget is taken. The first use raises PlanError if it belongs to something else.
            make_tier: gives a place outside the arena of so many bytes; by default a file in `spill_dir`.
            backend: an earlier name of `device`.
            **choices: what `Settings` has beside the shape, all by name: `optimizer` (plain SGD by default), `loss`
                (softmax cross-entropy by default), `memory` (the budget in bytes, or text such as "400 MiB"; by default
                what is free, less the process's need), `strategy`, `kernels` ("fit", or "fixed" for no dependence on
                the budget to the bit), `device` ("auto", "cuda", "onednn", "reference", "null", or a name that
                `register_backend` was given), `dtype`, `seed`, `threads`, `costs` ("measured", or "analytic" for plans
                that do not depend on the machine), `link`, `spill_dir`, `spill_size`, `math`, `cuda_graphs`.

        Raises:
            ShapeError: an input shape that is none.
            ConfigError: another choice that makes no sense.
            GraphError: `network` is no layer.
            DeviceError: the library of the device is missing.
        """
        require_known("Trainer", choices)
        if backend is not None:
            choices["device"] = take_earlier_name(backend, choices.get("device"))
        if make_tier is not None and not callable(make_tier):
            raise ConfigError("make_tier", "a function from a number of bytes to a Tier", repr(make_tier))
        self.settings = Settings(input_shape=input_shape, **choices)
        self.network = require_layer("Trainer", network)
        self._targets = Targets(network, self.settings)
        rate = self.settings.optimizer.learning_rate if learning_rate is None else learning_rate
        self.learning_rate: LearningRate = require_learning_rate(rate)
        self.step = self.epoch = self.batch = 0
        self._session = open_session(
            network,
            self.settings,
            cache=None if cache is None else parse_path("cache", cache, "the name of a folder"),
            progress=Switch().read("progress", "", progress),
            plan_file=None if plan is None else parse_path("plan", plan, "the name of a file"),
            make_tier=make_tier,
        )
        self._learned = LearnedState(self._session)
        self._kept: Path | None = None

    @classmethod
    def with_settings(cls, network: Layer, settings: Settings, **how: Any) -> Trainer:
        """Make a trainer with settings that are put together already.

        Args:
            network: its layers.
            settings: all choices.
            **how: the arguments of `Trainer` that are no choice: `learning_rate`, `cache`, `progress`, `plan`,
                `make_tier`.
        """
        choices: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(settings)}
        return cls(network, **choices, **how)

    @property
    def planned(self) -> Planned:
        """The training step: its graph, costs and plan."""
        return self._session.training

    @property
    def plan(self) -> Plan:
        """The plan of the training step."""
        return self.planned.plan

    def explain(self) -> str:
        """Return the plan in words and tables."""
        return self.planned.explain()

    def save_plan(self, path: Path | str) -> None:
        """Write the plan of the training step to a file, aside and renamed, for `Trainer(plan=...)`.

        Raises:
            ConfigError: there is something at `path` that is no regular file.
            OSError: it cannot be written; what was there is unharmed.
        """
        self.planned.save(Path(path))

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena that have been made resident."""
        return self._session.device.arena.committed_bytes

    @property
    def arena_high_water_bytes(self) -> int:
        """How far up the arena the training step reaches, measured when it was bound to addresses."""
        return self._session.program(Mode.TRAINING, self.settings.input_shape[0])[1].high_water_bytes

    @property
    def state(self) -> State:
        """Parameters, running statistics and state of the optimizer; given their first values on first use.

        Raises:
            ConfigError: the trainer was closed, or a step broke off: what it had learned is gone.
        """
        return self._learned.ensure()

    @property
    def target(self) -> Target:
        """What the loss compares the network's output with, for a full batch.

        Raises:
            ShapeError: the loss takes no output of that shape.
        """
        return self._targets.find(self.settings.input_shape[0])

    @property
    def classes(self) -> int:
        """Number of classes that the network tells apart; 0 where the loss does not compare with classes."""
        return self.target.classes

    def train_step(self, images: Array, labels: Array, *, watch: Watch | None = None) -> StepResult:
        """Train on one batch of at most N images.

        Args:
            images: (n, C, H, W), any usual type, order and byte order.
            labels: (n,), whole numbers from 0 to classes − 1; with another loss than cross-entropy, its targets.
            watch: told how far the step is.

        Raises:
            DataError: images or labels do not fit; nothing has changed then.
            ConfigError: the learning rate or a step scalar of the optimizer makes no sense; nothing has changed then.
            NonFiniteError: the loss is not finite; what was learned is lost, and restore() goes on from a checkpoint.
        """
        begin = time.perf_counter()
        settings = self.settings
        images, labels = as_batch(
            images, labels, settings.input_shape, self._targets.find, settings.dtype, position=self.batch
        )
        scalars = compute_scalars(settings.optimizer, self.step + 1, find_rate(self.learning_rate, self.step))
        state = self._learned.ensure()
        planned, executor = self._session.program(Mode.TRAINING, len(labels))
        feeds = make_training_feeds(images, labels, scalars, settings.seed, self.step)
        before = self._session.traffic
        with hold_back_interrupts():
            with self._learned.change(f"step {self.step + 1} that broke off halfway"):
                outputs = run_step(executor, planned.graph, feeds, state, self.step + 1, self._kept, watch)
            self.step += 1
            self.batch += 1
        moved = self._session.traffic.since(before)
        return StepResult(
            step=self.step,
            epoch=self.epoch,
            images=len(labels),
            loss=float(outputs[LOSS][0]),
            metrics=count_shares(settings.loss.metrics, outputs.get(CORRECT, ()), len(labels)),
            seconds=time.perf_counter() - begin,
            moved_bytes=moved.nbytes,
            moving_seconds=moved.seconds,
            waited_seconds=executor.waited_seconds,
        )

    def expect(self, source: object) -> None:
        """Say which data are coming, before `plan`, so that room is left; raises BudgetError where it is too late."""
        self._session.budgets.expect(source)

    def prepare(self, images: int) -> None:
        """Plan the training step for a batch of so many images, which is done otherwise when the first one comes.

        Raises BudgetError where no plan fits, and ShapeError where a layer takes no batch of that size.
        """
        if images <= self.settings.input_shape[0]:
            self._session.program(Mode.TRAINING, images)

    def fit(
        self,
        batches: Source | Iterable[tuple[Array, Array]],
        *,
        epochs: int = 1,
        steps: int | None = None,
        watch: Watch | None = None,
    ) -> Iterator[StepResult]:
        """Train batch by batch, going on from where this trainer stands; one result per step.

        Each step is taken when its result is asked for: `for result in trainer.fit(...)`. Where nothing is left to
        train, or the results are never asked for, a warning says so.

        Args:
            batches: a source, or any iterable of (images, labels).
            epochs: train until this many epochs are done, counted from the first.
            steps: stop when this many steps are done, counted from the first.
            watch: told during each step how far it is.

        Raises:
            ConfigError: not whole numbers.
            DataError: there is no batch, or one does not fit; the steps before it are done and whole.
        """
        return start_fitting(self, batches, epochs, steps, watch)

    def evaluate(self, batches: Source | Iterable[tuple[Array, Array]]) -> Evaluation:
        """Loss and metrics over all batches, with running statistics and without dropout.

        Raises:
            DataError: there is no batch, or one does not fit.
        """
        source = batches if isinstance(batches, Source) else FromIterable(batches)
        self._learned.ensure()
        return evaluate_batches(self._session, self._targets.find, source)

    def predict(self, images: Array) -> Array:
        """Return the outputs for any number of images, such as (n, classes) before softmax: `argmax(1)` is the class.

        Raises:
            DataError: no array, no image, or one that does not fit.
        """
        if not isinstance(images, np.ndarray) or not images.ndim:
            raise DataError("predict", "a numpy array of images", f"a {type(images).__name__}", "Use numpy.asarray.")
        self._learned.ensure()
        return predict_outputs(self._session, images)

    def save(self, folder: Path | str, keep: int = 2) -> Path:
        """Write a checkpoint with everything that training needs to go on to the bit.

        The file is written aside, synced and renamed, so that the one before it stays whole.

        Args:
            folder: made when missing.
            keep: how many of the newest checkpoints stay.

        Raises:
            CheckpointError: it could not be written; earlier ones are unharmed.
            NonFiniteError: a tensor holds numbers that are not finite; earlier ones are unharmed.
        """
        state = self._learned.ensure()
        rate = None if callable(self.learning_rate) else find_rate(self.learning_rate, self.step)
        progress = Progress(self.step, self.epoch, self.batch, rate)
        self._kept = save_run(Path(folder), self._session, state, progress, keep)
        return self._kept

    def restore(self, folder: Path | str) -> bool:
        """Go on from the newest whole checkpoint in `folder`; False when there is none at all.

        Damaged checkpoints are named in the log and the one before is used. The checkpoint's learning rate replaces
        this trainer's, unless either is a function; assign `learning_rate` afterwards to change it.

        Raises:
            CheckpointError: all are damaged, or the newest whole one belongs to another network or run.
        """
        found = find_run(Path(folder), self._session)
        if found is None:
            return False
        self.close()  # plans made so far may have chosen other kernels
        self._session.known_kernels = read_kernels(found)
        self._learned.renew()
        try:
            read_state(found, self._learned.ensure())
        except BaseException:
            self.close()
            self._learned.lose("a checkpoint that was read halfway")
            raise
        self._kept, progress = found.path, read_progress(found)
        self.step, self.epoch, self.batch = progress.step, progress.epoch, progress.batch
        if progress.learning_rate is not None and not callable(self.learning_rate):
            self.learning_rate = progress.learning_rate
        return True

    def close(self) -> None:
        """Give all memory back; weights that were not saved are gone. May be called twice."""
        self._learned.forget()
        self._session.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
