"""Training, evaluation, prediction: the loop around the programs of a session.

The trainer counts steps, epochs and batches, feeds batches and step scalars, and saves and restores all of it.
"""

from __future__ import annotations

import logging
import math
import numbers
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layers.builder import Layer, forward_graph
from ..layers.modes import CORRECT, IMAGES, LABELS, LOSS, RANDOM_KEY, SCALARS
from ..layers.optimizer import SGD
from ..memory.errors import BudgetError, CheckpointError, ConfigError, DataError
from ..memory.tiers.tier import Tier
from ..scheduler.plan.steps import Plan
from .checkpoints import folder as checkpoint
from .checkpoints.compatibility import environment, identity, require_match
from .data.checks import as_batch
from .data.sources import FromIterable, Source, require_count
from .interrupts import hold_back_interrupts
from .results import Evaluation, StepResult, Watch
from .session import Mode, Planned, Session
from .settings import Settings, as_shape
from .state import State

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]
LearningRate = float | Callable[[int], float]
"""A number, or a function of the number of steps done so far."""


class Trainer:
    """A network, a budget, and the steps in between.

    Memory is taken and the plan is made when first needed: by `plan`, `fit`, `evaluate`, `predict` or `save`.
    """

    def __init__(
        self,
        network: Layer,
        input_shape: Sequence[int],
        *,
        optimizer: SGD | None = None,
        memory: int | str | None = None,
        strategy: str = "auto",
        kernels: str = "fit",
        backend: str = "auto",
        dtype: str = "float32",
        seed: int = 0,
        threads: int | None = None,
        costs: str = "measured",
        learning_rate: LearningRate | None = None,
        cache: Path | str | None = None,
        progress: bool = False,
        plan: Path | str | None = None,
        link: str | None = None,
        spill_dir: str | None = None,
        spill_size: int | str | None = None,
        math: str = "float32",
        cuda_graphs: bool = True,
        make_tier: Callable[[int], Tier] | None = None,
    ) -> None:
        """Store what to train and how.

        Args:
            network: its layers.
            input_shape: (N, C, H, W) of a full batch.
            optimizer: plain SGD by default.
            memory: the budget, in bytes or as text such as "400 MiB"; by default 80 % of what is free.
            strategy: one of `list_spellings()`; "auto" moves tensors to a disk where a place or `link` is given.
            kernels: "fit", or "fixed" for results that do not depend on the budget to the bit.
            backend: what computes: "auto", "cuda", "onednn", "reference" or "null".
            dtype: "float32" or "float64".
            seed: of first values and dropout.
            threads: of the backend; all cores by default.
            costs: "measured", or "analytic" for plans that do not depend on the machine.
            learning_rate: the optimizer's by default; a function of the steps done for a schedule.
            cache: folder for measured seconds.
            progress: whether bars are shown while profiling.
            plan: file of a plan for full batches, written by `save_plan` or `bathyal plan --save-plan`; without `memory`
                its budget is taken. It is read with the first use and raises PlanError if it belongs to something else.
            link: rates of the disk in bytes per second, such as "600 MB,1.5 GB" for out and in; measured by default.
            spill_dir: folder, on a disk, for what is moved out of memory.
            spill_size: the most bytes there; by default what the disk has free.
            math: on a GPU "float32" or "tf32".
            cuda_graphs: whether a GPU's step is captured and launched as one.
            make_tier: gives a place outside the arena of so many bytes; by default a file in `spill_dir`.

        Raises:
            ConfigError: a choice that makes no sense.
        """
        self.settings = Settings(
            as_shape(input_shape),
            SGD() if optimizer is None else optimizer,
            memory,
            strategy,
            kernels,
            backend,
            dtype,
            seed,
            threads,
            costs,
            link,
            spill_dir,
            spill_size,
            math,
            cuda_graphs,
        )
        self.network = network
        self.learning_rate: LearningRate = (
            self.settings.optimizer.learning_rate if learning_rate is None else learning_rate
        )
        self.step = 0
        self.epoch = 0
        self.batch = 0
        self._session = Session(
            network,
            self.settings,
            cache=None if cache is None else Path(cache),
            progress=progress,
            plan_file=None if plan is None else Path(plan),
            make_tier=make_tier,
        )
        self._state: State | None = None
        self._classes = 0
        self._lost = ""

    @classmethod
    def with_settings(cls, network: Layer, settings: Settings, **how: Any) -> Trainer:
        """A trainer with settings that are put together already; `how` are the arguments that are no setting."""
        return cls(network, **{field.name: getattr(settings, field.name) for field in fields(settings)}, **how)

    @property
    def planned(self) -> Planned:
        """The training step: its graph, costs and plan."""
        return self._session.training

    @property
    def plan(self) -> Plan:
        """The plan of the training step."""
        return self.planned.plan

    def explain(self) -> str:
        """The plan in words and tables."""
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
        """Parameters, running statistics and momentum; given their first values on first use.

        Raises:
            ConfigError: the trainer was closed, or a step broke off: what it had learned is gone.
        """
        if self._lost:
            hint = "Save before closing; restore() goes on from a checkpoint."
            raise ConfigError("trainer", "weights from first to last step", self._lost, hint)
        if self._state is None:
            planned, session = self._session.training, self._session
            self._state = State(planned.graph, session.state_layout, session.backend, session.device, session.tier)
            self._state.initialize(self.settings.seed)
        return self._state

    @property
    def classes(self) -> int:
        """Number of classes that the network tells apart."""
        if not self._classes:
            graph = forward_graph(self.network, self.settings.input_shape, self.settings.dtype)
            self._classes = graph.tensors[graph.outputs[0]].shape[-1]
        return self._classes

    def train_step(self, images: Array, labels: Array, *, watch: Watch | None = None) -> StepResult:
        """Train on one batch of at most N images.

        Args:
            images: (n, C, H, W), any usual type, order and byte order.
            labels: (n,), whole numbers from 0 to classes − 1.
            watch: told how far the step is.

        Raises:
            DataError: images or labels do not fit; nothing has changed then.
        """
        begin = time.perf_counter()
        images, labels = self._checked(images, labels, self.batch)
        rate = self._rate()
        _ = self.state
        _, executor = self._session.program(Mode.TRAINING, len(labels))
        feeds = {
            IMAGES: images,
            LABELS: labels,
            SCALARS: np.array([rate, 1.0]),
            RANDOM_KEY: np.array([self.settings.seed, self.step], np.int64),
        }
        before = self._session.traffic
        with hold_back_interrupts():
            self._lost = f"step {self.step + 1} that broke off halfway"
            outputs = executor.run(feeds, watch)
            self._lost = ""
            self.step += 1
            self.batch += 1
        top1, top5 = (int(n) / len(labels) for n in outputs[CORRECT])
        moved = self._session.traffic.since(before)
        return StepResult(
            self.step,
            self.epoch,
            len(labels),
            float(outputs[LOSS][0]),
            top1,
            top5,
            time.perf_counter() - begin,
            moved.nbytes,
            moved.seconds,
            executor.waited_seconds,
        )

    def _rate(self) -> float:
        rate = self.learning_rate(self.step) if callable(self.learning_rate) else self.learning_rate
        if not isinstance(rate, numbers.Real) or not 0 <= rate < math.inf:
            raise ConfigError("learning_rate", "a finite number of at least 0", repr(rate))
        return float(rate)

    def fit(
        self,
        batches: Source | Iterable[tuple[Array, Array]],
        *,
        epochs: int = 1,
        steps: int | None = None,
        watch: Watch | None = None,
    ) -> Iterator[StepResult]:
        """Train batch by batch, going on from where this trainer stands; one result per step.

        Args:
            batches: a source, or any iterable of (images, labels).
            epochs: train until this many epochs are done, counted from the first.
            steps: stop when this many steps are done, counted from the first.
            watch: told during each step how far it is.

        Raises:
            ConfigError: not whole numbers.
            DataError: there is no batch, or one does not fit; the steps before it are done and whole.
        """
        require_count("epochs", epochs, 0)
        if steps is not None:
            require_count("steps", steps, 0)
        return self._steps(batches, epochs, steps, watch)

    def _steps(
        self, batches: Source | Iterable[tuple[Array, Array]], epochs: int, steps: int | None, watch: Watch | None
    ) -> Iterator[StepResult]:
        source = batches if isinstance(batches, Source) else FromIterable(batches)
        while self.epoch < epochs and (steps is None or self.step < steps):
            for images, labels in source.epoch(self.epoch, self.batch):
                yield self.train_step(images, labels, watch=watch)
                if steps is not None and self.step >= steps:
                    return
            if self.batch == 0:
                raise DataError(f"epoch {self.epoch}", "at least one batch", "none")
            self.epoch, self.batch = self.epoch + 1, 0

    def evaluate(self, batches: Source | Iterable[tuple[Array, Array]]) -> Evaluation:
        """Loss and accuracy over all batches, with running statistics and without dropout.

        Raises:
            DataError: there is no batch, or one does not fit.
        """
        source = batches if isinstance(batches, Source) else FromIterable(batches)
        _ = self.state
        images_seen, loss, correct = 0, 0.0, np.zeros(2, np.int64)
        for position, (images, labels) in enumerate(source.epoch(0, 0)):
            checked = self._checked(images, labels, position)
            for outputs, count in self._run_in_parts(Mode.EVALUATION, *checked):
                images_seen += count
                loss += float(outputs[LOSS][0]) * count
                correct += outputs[CORRECT]
        if not images_seen:
            raise DataError("evaluate", "at least one batch", "none")
        top1, top5 = (int(n) / images_seen for n in correct)
        return Evaluation(images_seen, loss / images_seen, top1, top5)

    def predict(self, images: Array) -> Array:
        """The network's outputs (n, classes) for any number of images, before softmax; `argmax(1)` is the class.

        Raises:
            DataError: no array, no image, or one that does not fit.
        """
        if not isinstance(images, np.ndarray) or not images.ndim:
            raise DataError("predict", "a numpy array of images", f"a {type(images).__name__}", "Use numpy.asarray.")
        _ = self.state
        size = self.settings.input_shape[0]
        parts: list[Array] = []
        for start in range(0, len(images), size):
            part = images[start : start + size]
            checked = self._checked(part, np.zeros(len(part), np.int64), start // size)
            for outputs, _count in self._run_in_parts(Mode.PREDICTION, *checked):
                parts.extend(outputs.values())
        if not parts:
            raise DataError("predict", "at least one image", "none")
        return np.concatenate(parts)

    def _run_in_parts(self, mode: Mode, images: Array, labels: Array) -> Iterator[tuple[dict[str, Array], int]]:
        """Run in as few parts as the budget allows: a batch that trains in little memory may not evaluate whole."""
        size = len(labels)
        while True:
            try:
                self._session.program(mode, size)
                break
            except BudgetError:
                if size == 1:
                    raise
                size = -(-size // 2)
        for start in range(0, len(labels), size):
            part = slice(start, start + size)
            _, executor = self._session.program(mode, len(labels[part]))
            yield executor.run({IMAGES: images[part], LABELS: labels[part]}), len(labels[part])

    def _checked(self, images: Array, labels: Array, position: int) -> tuple[Array, Array]:
        settings = self.settings
        return as_batch(images, labels, settings.input_shape, self.classes, settings.dtype, position=position)

    def save(self, folder: Path | str, keep: int = 2) -> Path:
        """Write a checkpoint with everything that training needs to go on to the bit.

        The file is written aside, synced and renamed, so that the one before it stays whole.

        Args:
            folder: made when missing.
            keep: how many of the newest checkpoints stay.

        Raises:
            CheckpointError: it could not be written; earlier ones are unharmed.
        """
        state = self.state
        arrays = ((name, t.shape, t.dtype, state.pieces(name)) for name, t in state.tensors.items())
        return checkpoint.save(Path(folder), self.step, self._header(), arrays, keep=keep)

    def _header(self) -> dict[str, Any]:
        return {
            **identity(self.network, self.settings),
            **environment(self._session),
            "step": self.step,
            "epoch": self.epoch,
            "batch": self.batch,
            "learning_rate": None if callable(self.learning_rate) else self._rate(),
            "kernels": {key: list(names) for key, names in self._session.kernels().items()},
        }

    def restore(self, folder: Path | str) -> bool:
        """Go on from the newest whole checkpoint in `folder`; False when there is none at all.

        Damaged checkpoints are named in the log and the one before is used. The checkpoint's learning rate replaces
        this trainer's, unless either is a function; assign `learning_rate` afterwards to change it.

        Raises:
            CheckpointError: all are damaged, or the newest whole one belongs to another network or run.
        """
        found, damaged = checkpoint.newest(Path(folder))
        if found is None:
            if damaged:
                found_there = f"{len(damaged)} damaged, the newest {damaged[0].where}"
                raise CheckpointError(str(folder), "a whole checkpoint", found_there, "Start in a new folder.")
            return False
        around = environment(self._session)
        require_match(found.path, found.header, identity(self.network, self.settings), around)
        self.close()  # plans made so far may have chosen other kernels
        self._session.known_kernels = {k: tuple(names) for k, names in found.header["kernels"].items()}
        self._lost = ""
        try:
            state = self.state
            for name in found.entries:
                state.write_pieces(name, found.pieces(name, state.rows(name)))
        except BaseException:
            self.close()
            self._lost = "a checkpoint that was read halfway"
            raise
        self.step, self.epoch, self.batch = (int(found.header[k]) for k in ("step", "epoch", "batch"))
        if found.header["learning_rate"] is not None and not callable(self.learning_rate):
            self.learning_rate = float(found.header["learning_rate"])
        return True

    def close(self) -> None:
        """Give all memory back; weights that were not saved are gone. May be called twice."""
        if self._state is not None:
            self._lost = "those of a closed trainer"
        self._state = None
        self._session.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
