"""A run of training from its options to its end: what is planned is told first, each step as it is done, and saved.

An interrupt ends the run after the step that is running; what was learned is saved then, as it is where any
error breaks off. Does not tell the end: commands do.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from ..engine.checkpoints import folder as checkpoint
from ..engine.data.sources import Source
from ..engine.finite import require_finite_weights
from ..engine.fitting import describe_done
from ..engine.results import StepResult
from ..engine.trainer import Trainer
from ..memory.errors import BathyalError, CheckpointError, NonFiniteError
from ..options.data import load_data
from ..options.settings import DEFAULT_LEARNING_RATE
from ..options.training import check_training_options
from ..reports.plan import describe_network
from ..reports.training import summarize_step, summarize_training
from .step_bar import StepBar

logger = logging.getLogger(__name__)

RECENT = 20
"""Steps that the loss on the bar is averaged over."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A run that has ended.

    Attributes:
        results: of its steps.
        document: the whole run in numbers.
        stopped: whether it was interrupted.
    """

    results: list[StepResult]
    document: dict[str, Any]
    stopped: bool


def carry_out(options: argparse.Namespace) -> Trained:
    """Train as the options of `bathyal train` say, saying what is planned and how far it is, but not the end."""
    check_training_options(options)
    data = load_data(options)
    trainer = Trainer.with_settings(
        data.setup.network,
        data.setup.settings,
        learning_rate=make_schedule(options, data.train),
        progress=sys.stderr.isatty(),
        plan=options.plan,
    )
    trainer.expect(data.train)
    with trainer, catch_stop_signals() as stopped:
        resume(options, trainer)
        planned = trainer.planned
        if options.checkpoint is not None:
            checkpoint.prepare(options.checkpoint)
        if not options.json:
            print(describe_network(data.setup, planned.graph))
            print(planned.explain().split("\n", 1)[0], flush=True)
        results = train_and_save(options, trainer, data.train, stopped)
        evaluation = trainer.evaluate(data.held_out) if data.held_out is not None and not stopped() else None
        return Trained(results, summarize_training(trainer, results, evaluation), stopped())


def report_end(options: argparse.Namespace, trained: Trained) -> int:
    """Return the exit status of a run; say on standard error where it was interrupted."""
    if trained.stopped:
        print("bathyal: interrupted" + _describe_kept(options), file=sys.stderr)
        return 130
    return 0


def train_and_save(
    options: argparse.Namespace, trainer: Trainer, source: Source, stopped: Callable[[], bool]
) -> list[StepResult]:
    """Train and save at the end, and whatever the error is that ends the run: the steps done before it are whole.

    Not so after a step whose numbers are not finite. An error of saving then is logged, as what there is to say is the
    one that ended the run.
    """
    begun = trainer.step
    try:
        results = list(take_steps(options, trainer, source, stopped))
    except NonFiniteError:
        raise
    except Exception:
        if options.checkpoint is not None and trainer.step > begun:
            try:
                trainer.save(options.checkpoint)
            except (BathyalError, OSError) as error:
                logger.warning("not saved: %s", error)
        raise
    if options.checkpoint is not None:
        trainer.save(options.checkpoint)
    elif trainer.step > begun:
        require_finite_weights(trainer.state, trainer.step)
    return results


def _describe_kept(options: argparse.Namespace) -> str:
    return f"; --resume goes on from {options.checkpoint}" if options.checkpoint is not None else ""


def make_schedule(options: argparse.Namespace, source: Source) -> float | Callable[[int], float]:
    """Return the learning rate; a function of the steps done where it changes."""
    rate = DEFAULT_LEARNING_RATE if options.lr is None else options.lr
    if options.schedule == "constant":
        return rate
    total = options.steps or (options.epochs or 1) * (source.batches_per_epoch or 1)
    return lambda step: rate * 0.5 * (1 + math.cos(math.pi * min(step / total, 1.0)))


def resume(options: argparse.Namespace, trainer: Trainer) -> None:
    """Go on from a checkpoint where that is asked for; never overwrite another run's.

    Raises:
        CheckpointError: there is none to go on from, or there is one and `--resume` is missing.
    """
    if options.checkpoint is None:
        return
    if options.resume:
        if trainer.restore(options.checkpoint):
            if options.lr is not None and not callable(trainer.learning_rate):
                trainer.learning_rate = options.lr
        elif not options.json:
            print(f"no checkpoint in {options.checkpoint} yet: starting", flush=True)
        return
    found, damaged = checkpoint.find_newest(options.checkpoint) if options.checkpoint.is_dir() else (None, [])
    if found is not None or damaged:
        raise CheckpointError(
            str(options.checkpoint),
            "an empty folder",
            "checkpoints of an earlier run",
            "Add --resume, or take another.",
        )


def take_steps(
    options: argparse.Namespace, trainer: Trainer, source: Source, stopped: Callable[[], bool]
) -> Iterator[StepResult]:
    """Train, with a bar on a terminal, a line a step with `--json`, and checkpoints as asked for."""
    epochs = options.epochs or (1 if options.steps is None else sys.maxsize)
    per_epoch = source.batches_per_epoch
    total = options.steps or (per_epoch * epochs if per_epoch else None)
    if describe_done(trainer.step, trainer.epoch, epochs, options.steps):
        return  # the report says so
    losses: list[float] = []
    shown = sys.stderr.isatty()
    with tqdm(total=total, initial=trainer.step, unit="step", disable=not shown) as bar, StepBar(shown) as within:
        for result in trainer.fit(source, epochs=epochs, steps=options.steps, watch=within):
            losses = [*losses[-RECENT + 1 :], result.loss]
            bar.set_postfix(loss=f"{statistics.fmean(losses):.4f}", epoch=result.epoch, refresh=False)
            bar.update()
            if options.json:
                print(json.dumps(summarize_step(result)), flush=True)
            yield result
            if options.checkpoint is not None and result.step % options.checkpoint_every == 0:
                trainer.save(options.checkpoint)
            if stopped():
                return


@contextmanager
def catch_stop_signals() -> Iterator[Callable[[], bool]]:
    """Turn a first SIGINT or SIGTERM into a wish that the loop looks at; a second one ends at once."""
    wished: list[int] = []

    def handle(number: int, frame: object) -> None:
        if wished:
            raise KeyboardInterrupt
        wished.append(number)

    earlier = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(wished)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
