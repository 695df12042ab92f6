"""The steps of `Trainer.fit`: an iterator that takes one each time it is asked, and says so where none was ever taken.

Decides which batch comes next from where the trainer stands; what a step is, the trainer knows.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from ..memory.errors import DataError
from .data.sources import Batch, FromIterable, Source, require_count
from .results import StepResult, Watch

if TYPE_CHECKING:
    from .trainer import Trainer


class Fitting(Iterator[StepResult]):
    """The steps that remain, each of which is taken when its result is asked for.

    One that is thrown away before its first step warns, as a call of `fit` alone trains nothing.
    """

    def __init__(self, steps: Generator[StepResult, None, None]) -> None:
        self._steps = steps
        self._begun = False

    def __next__(self) -> StepResult:
        """Take a step and return its result."""
        self._begun = True
        return next(self._steps)

    def close(self) -> None:
        """Take no more steps; whatever the source holds is let go."""
        self._begun = True
        self._steps.close()

    def __del__(self) -> None:
        if not self._begun:
            text = "Trainer.fit was called, but its steps were never taken: nothing was trained. "
            text += "Write `for result in trainer.fit(...): ...`, or `list(trainer.fit(...))`."
            warnings.warn(text, UserWarning, stacklevel=2)


def describe_done(step: int, epoch: int, epochs: int, steps: int | None) -> str:
    """Say that there is nothing to train as it is done already; empty where there is something, or none was asked for.

    Args:
        step: the steps done.
        epoch: the epochs done.
        epochs: until how many it is trained, counted from the first.
        steps: likewise, or None.
    """
    for name, done, until in (("steps", step, steps), ("epochs", epoch, epochs)):
        if until and done >= until:
            return (
                f"nothing to train: {done} {name} are done, and {name}={until} counts from the first; "
                f"{name}={done + until} trains {until} more"
            )
    return ""


def start_fitting(
    trainer: Trainer, batches: Source | Iterable[Batch], epochs: int, steps: int | None, watch: Watch | None
) -> Iterator[StepResult]:
    """Return the steps that `Trainer.fit` is asked for; warn its caller where there is none left.

    Raises:
        ConfigError: not whole numbers of epochs and steps.
    """
    require_count("epochs", epochs, 0)
    if steps is not None:
        require_count("steps", steps, 0)
    done = describe_done(trainer.step, trainer.epoch, epochs, steps)
    if done:
        warnings.warn(f"Trainer.fit: {done}", UserWarning, stacklevel=3)
        return iter(())
    source = batches if isinstance(batches, Source) else FromIterable(batches)
    return Fitting(take_steps(trainer, source, epochs, steps, watch))


def take_steps(
    trainer: Trainer, source: Source, epochs: int, steps: int | None, watch: Watch | None
) -> Generator[StepResult, None, None]:
    """Train batch by batch until so many epochs or steps are done, and yield the result of each step.

    Raises:
        DataError: there is no batch, or one does not fit; the steps before it are done and whole.
    """
    while trainer.epoch < epochs and (steps is None or trainer.step < steps):
        for images, labels in source.epoch(trainer.epoch, trainer.batch):
            yield trainer.train_step(images, labels, watch=watch)
            if steps is not None and trainer.step >= steps:
                return
        if trainer.batch == 0:
            raise DataError(f"epoch {trainer.epoch}", "at least one batch", "none")
        trainer.epoch, trainer.batch = trainer.epoch + 1, 0
