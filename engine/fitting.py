"""The steps of `Trainer.fit`: an iterator that takes one each time it is asked, and says so where none was ever taken.

Decides which batch comes next from where the trainer stands; what a step is, the trainer knows.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from ..memory.errors import BudgetError, DataError, ShapeError
from .data.sources import Batch, FromIterable, Source, find_batch_sizes, require_count
from .results import StepResult, Watch

if TYPE_CHECKING:
    from .trainer import Trainer


LEAVE_OUT = "Leave it out by drop_last=True (--drop-last), or take another size of batches."


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
    return Fitting(take_steps(trainer, batches, epochs, steps, watch))


def prepare_sizes(trainer: Trainer, source: Source, last: int | None) -> None:
    """Plan all sizes of batches that are known ahead, so that none is refused when an epoch is nearly done.

    Args:
        trainer: that is about to train.
        source: of the batches.
        last: the step after which training ends; None where no step is the last. Before the end of an epoch no batch
            is short.

    Raises:
        BudgetError: one of them has no plan.
        ShapeError: a layer takes no batch of so few images.
    """
    sizes, per_epoch = find_batch_sizes(source) or (), source.batches_per_epoch
    if last is not None and per_epoch is not None and last - trainer.step < per_epoch - trainer.batch:
        sizes = sizes[:1]
    for size in sizes:
        try:
            trainer.prepare(size)
        except (BudgetError, ShapeError) as error:
            if size == sizes[0]:
                raise
            error.args = (f"the last batch of an epoch has {size} images: {error} {LEAVE_OUT}",)
            raise


def take_steps(
    trainer: Trainer, batches: Source | Iterable[Batch], epochs: int, steps: int | None, watch: Watch | None
) -> Generator[StepResult, None, None]:
    """Train batch by batch until so many epochs or steps are done, and yield the result of each step.

    Raises:
        BudgetError: a size of batches that is known ahead has no plan; nothing is trained then.
        ShapeError: likewise, where a layer takes no batch of that size.
        DataError: there is no batch, or one does not fit; the steps before it are done and whole.
    """
    source = batches if isinstance(batches, Source) else FromIterable(batches)
    trainer.expect(batches)
    prepare_sizes(trainer, source, steps)
    while trainer.epoch < epochs and (steps is None or trainer.step < steps):
        for images, labels in source.epoch(trainer.epoch, trainer.batch):
            result = trainer.train_step(images, labels, watch=watch)
            del images, labels  # else they stay in memory while the next batch is made
            yield result
            if steps is not None and trainer.step >= steps:
                return
        if trainer.batch == 0:
            raise DataError(f"epoch {trainer.epoch}", "at least one batch", "none")
        trainer.epoch, trainer.batch = trainer.epoch + 1, 0
