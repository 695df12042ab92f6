"""A run of training for people and for machines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ..engine.results import Evaluation, StepResult, hidden_share
from ..engine.trainer import Trainer
from ..memory.process.process_memory import resident_peak_bytes
from ..memory.sizes import format_size
from .numbers import finite_or_none
from .plan import summarize_plan


def summarize_step(result: StepResult) -> dict[str, Any]:
    """Return one step in numbers, for machines."""
    return {
        "step": result.step,
        "epoch": result.epoch,
        "images": result.images,
        "loss": finite_or_none(result.loss),
        **result.metrics,
        "seconds": result.seconds,
        "moved_bytes": result.moved_bytes,
        "moving_seconds": result.moving_seconds,
        "waited_seconds": result.waited_seconds,
        "hidden_share": result.hidden_share,
    }


def summarize_training(trainer: Trainer, results: list[StepResult], evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the whole run in numbers; where there are more steps than one, the first, which warms up, has no speed."""
    timed = results[1:] or results
    seconds = statistics.median(r.seconds for r in timed) if timed else None
    document = summarize_plan(trainer.planned)
    document |= {
        "steps": trainer.step,
        "loss": finite_or_none(results[-1].loss) if results else None,
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
        document |= {"held_out_images": evaluation.images, "held_out_loss": finite_or_none(evaluation.loss)}
        document |= {f"held_out_{name}": share for name, share in evaluation.metrics.items()}
    return document


def report_training(document: dict[str, Any]) -> str:
    """Return the whole run for people; `document` is from `summarize_training`."""
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
        lines.append(report_transfers(document))
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


def report_transfers(document: Mapping[str, Any]) -> str:
    """Return a line on what moved in a step, for people."""
    return (
        f"moved {format_size(document['moved_bytes'])} a step in {document['moving_seconds']:.4g} s of transfers, "
        f"{100 * document['hidden_share']:.1f} % of them hidden: "
        f"the computation waited {document['waited_seconds']:.4g} s"
    )
