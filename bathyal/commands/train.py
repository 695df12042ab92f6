"""`bathyal train`: train a network within a budget, with checkpoints, and say what it took."""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..engine.checkpoints import folder as checkpoint
from ..engine.data.sources import Source
from ..engine.results import Evaluation, StepResult, hidden_share
from ..engine.trainer import Trainer
from ..memory.errors import CheckpointError, ConfigError, DataError
from ..memory.process.process_memory import resident_peak_bytes
from ..memory.sizes import format_size
from ..options.data import load
from ..options.network import DEFAULT_LEARNING_RATE
from . import plan as plan_command
from .step_bar import StepBar

RECENT = 20
"""Steps that the loss on the bar is averaged over."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What training takes beside what planning does."""
    command.add_argument(
        "--data",
        default="synthetic",
        type=_named,
        metavar="DIR|digits|synthetic",
        help="a folder of images, one sub-folder a class, or one with train/ and val/ in it; scikit-learn's digits; "
        "or random images (default: synthetic)",
    )
    command.add_argument("--steps", type=int, default=None, help="stop after this many steps in all")
    command.add_argument("--epochs", type=int, default=None, help="stop after this many epochs in all (default: 1)")
    command.add_argument(
        "--schedule",
        choices=["constant", "cosine"],
        default="constant",
        help="of the learning rate (default: constant)",
    )
    command.add_argument("--augment", action="store_true", help="crop and flip images at random (folders of images)")
    command.add_argument(
        "--checkpoint", type=_folder, default=None, metavar="DIR", help="keep checkpoints in this folder"
    )
    command.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS", help="(default: 100)")
    command.add_argument(
        "--plan",
        type=plan_command.file_name,
        default=None,
        metavar="FILE",
        help="follow a plan saved by `bathyal plan --save-plan`",
    )
    command.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --checkpoint")


def _named(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("expected a name, got an empty text")
    return text


def _folder(text: str) -> Path:
    return Path(_named(text))


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


def run(options: argparse.Namespace) -> int:
    """Train and report; an interrupt ends after the running step and saves."""
    trained = carry_out(options)
    print(json.dumps(trained.document) if options.json else report(trained.document), flush=True)
    return status(options, trained)


def status(options: argparse.Namespace, trained: Trained) -> int:
    """The exit status; says so where the run was interrupted."""
    if trained.stopped:
        print("bathyal: interrupted" + _kept(options), file=sys.stderr)
        return 130
    return 0


def carry_out(options: argparse.Namespace) -> Trained:
    """Train as the options of `bathyal train` say, saying what is planned and how far it is, but not the end."""
    _check(options)
    data = load(options)
    trainer = Trainer.with_settings(
        data.choice.network,
        data.choice.settings,
        learning_rate=schedule(options, data.train),
        progress=sys.stderr.isatty(),
        plan=options.plan,
    )
    with trainer, stopping() as stopped:
        resume(options, trainer)
        planned = trainer.planned
        if options.checkpoint is not None:
            checkpoint.prepare(options.checkpoint)
        if not options.json:
            print(plan_command.describe(data.choice, planned.graph))
            print(planned.explain().split("\n", 1)[0], flush=True)
        results = train(options, trainer, data.train, stopped)
        evaluation = trainer.evaluate(data.held_out) if data.held_out is not None and not stopped() else None
        return Trained(results, summary(trainer, results, evaluation), stopped())


def train(
    options: argparse.Namespace, trainer: Trainer, source: Source, stopped: Callable[[], bool]
) -> list[StepResult]:
    """Train and save at the end; also where the data or the output break off, as the steps done are whole then."""
    begun = trainer.step
    try:
        results = list(steps(options, trainer, source, stopped))
    except (DataError, OSError):
        if options.checkpoint is not None and trainer.step > begun:
            trainer.save(options.checkpoint)
        raise
    if options.checkpoint is not None:
        trainer.save(options.checkpoint)
    return results


def _check(options: argparse.Namespace) -> None:
    for name in ("steps", "epochs", "checkpoint_every"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError("--" + name.replace("_", "-"), "a whole number of at least 1", str(value))
    if options.resume and options.checkpoint is None:
        raise ConfigError("--resume", "a folder given with --checkpoint", "none")
    if options.device == "null":
        raise ConfigError("--device", "one that computes", "'null'", "It serves `bathyal plan` alone.")


def _kept(options: argparse.Namespace) -> str:
    return f"; --resume goes on from {options.checkpoint}" if options.checkpoint is not None else ""


def schedule(options: argparse.Namespace, source: Source) -> float | Callable[[int], float]:
    """The learning rate, as a function of the steps done where it changes."""
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
    found, damaged = checkpoint.newest(options.checkpoint) if options.checkpoint.is_dir() else (None, [])
    if found is not None or damaged:
        raise CheckpointError(
            str(options.checkpoint),
            "an empty folder",
            "checkpoints of an earlier run",
            "Add --resume, or take another.",
        )


def steps(
    options: argparse.Namespace, trainer: Trainer, source: Source, stopped: Callable[[], bool]
) -> Iterator[StepResult]:
    """Train, with a bar on a terminal, a line a step with `--json`, and checkpoints as asked for."""
    epochs = options.epochs or (1 if options.steps is None else sys.maxsize)
    per_epoch = source.batches_per_epoch
    total = options.steps or (per_epoch * epochs if per_epoch else None)
    losses: list[float] = []
    shown = sys.stderr.isatty()
    with tqdm(total=total, initial=trainer.step, unit="step", disable=not shown) as bar, StepBar(shown) as within:
        for result in trainer.fit(source, epochs=epochs, steps=options.steps, watch=within):
            losses = [*losses[-RECENT + 1 :], result.loss]
            bar.set_postfix(loss=f"{statistics.fmean(losses):.4f}", epoch=result.epoch, refresh=False)
            bar.update()
            if options.json:
                print(json.dumps(line(result)), flush=True)
            yield result
            if options.checkpoint is not None and result.step % options.checkpoint_every == 0:
                trainer.save(options.checkpoint)
            if stopped():
                return


def line(result: StepResult) -> dict[str, Any]:
    """One step in numbers."""
    return {
        "step": result.step,
        "epoch": result.epoch,
        "images": result.images,
        "loss": finite(result.loss),
        **result.metrics,
        "seconds": result.seconds,
        "moved_bytes": result.moved_bytes,
        "moving_seconds": result.moving_seconds,
        "waited_seconds": result.waited_seconds,
        "hidden_share": result.hidden_share,
    }


def finite(value: float) -> float | None:
    """The value, or None where it is none: JSON knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def summary(trainer: Trainer, results: list[StepResult], evaluation: Evaluation | None) -> dict[str, Any]:
    """The whole run in numbers; the first step, which warms up, does not count for the speed where there are more."""
    timed = results[1:] or results
    seconds = statistics.median(r.seconds for r in timed) if timed else None
    document = plan_command.summary(trainer.planned)
    document |= {
        "steps": trainer.step,
        "loss": finite(results[-1].loss) if results else None,
        "seconds_per_step": seconds,
        "images_per_second": statistics.median(r.images / r.seconds for r in timed) if timed else None,
        "moved_bytes": round(statistics.fmean(r.moved_bytes for r in timed)) if timed else 0,
        "moving_seconds": statistics.fmean(r.moving_seconds for r in timed) if timed else None,
        "waited_seconds": statistics.fmean(r.waited_seconds for r in timed) if timed else None,
        "hidden_share": hidden_share(sum(r.waited_seconds for r in timed), sum(r.moving_seconds for r in timed)),
        "arena_bytes": trainer.arena_bytes,
        "arena_high_water_bytes": trainer.arena_high_water_bytes,
        "weights_sha256": trainer.state.weights_sha256(),
    }
    document["process_peak_bytes"] = resident_peak_bytes()  # after the digest, which takes memory too
    if evaluation is not None:
        document |= {"held_out_images": evaluation.images, "held_out_loss": finite(evaluation.loss)}
        document |= {f"held_out_{name}": share for name, share in evaluation.metrics.items()}
    return document


def report(document: dict[str, Any]) -> str:
    """The same for people."""
    lines = []
    if document["seconds_per_step"] is None:
        lines.append(f"step {document['steps']} was reached before: nothing to train")
    else:
        loss = "not finite" if document["loss"] is None else f"{document['loss']:.4f}"
        lines.append(
            f"trained to step {document['steps']}: loss {loss}, {document['seconds_per_step']:.4g} s per "
            f"step, {document['images_per_second']:.4g} images/s"
        )
    if document["hidden_share"] is not None:
        lines.append(transfers(document))
    if "held_out_top1" in document:
        lines.append(
            f"held-out accuracy {100 * document['held_out_top1']:.2f} % on {document['held_out_images']} images "
            f"(top 5 {100 * document['held_out_top5']:.2f} %)"
        )
    for name, key in (
        ("budget", "budget_bytes"),
        ("predicted peak", "peak_bytes"),
        ("measured peak", "arena_high_water_bytes"),
        ("smallest budget", "min_budget_bytes"),
        ("all kept", "keep_bytes"),
    ):
        lines.append(f"{name:<16}{format_size(document[key]):>12}  ({document[key]} bytes)")
    lines.append(f"weights sha256  {document['weights_sha256']}")
    return "\n".join(lines)


def transfers(document: Mapping[str, Any]) -> str:
    """What moved in a step, for people."""
    return (
        f"moved {format_size(document['moved_bytes'])} a step in {document['moving_seconds']:.4g} s of transfers, "
        f"{100 * document['hidden_share']:.1f} % of them hidden: the computation waited {document['waited_seconds']:.4g} s"
    )


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
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
