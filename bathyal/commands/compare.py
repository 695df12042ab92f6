"""`bathyal compare`: the same training step by Bathyal and by PyTorch, side by side under the same limit on memory.

Each side runs in a process of its own and trains on one fixed batch from the same first values. Steps are taken in
turn, so that whatever else the machine does falls on all sides alike; seconds are medians after one step that warms
up. Where cgroups can be made, each process gets the same limit, enforced by the kernel; where the machine has too
little memory for all sides at once, one side runs after the other. Does not check more of the results than the loss of
the first step.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tqdm import tqdm

from ..comparison.process import SideProcess, keep_plain, read_libraries
from ..comparison.side import OURS
from ..comparison.torch_step import PEERS, require_torch
from ..engine.settings import Settings
from ..layers.builder import forward_graph
from ..memory.errors import ConfigError, DeviceError, one_of
from ..memory.process.available import free_memory
from ..memory.process.limit import MemoryLimit, memory_limit
from ..memory.sizes import format_size
from ..options.limit import add_limit_argument, read_limit
from ..options.network import NetworkSetup, add_network_arguments, choose_network
from ..options.settings import require_computing

PROCESS_BYTES = 256 * 2**20
"""Of a limit that follows from the budget: what it leaves to the interpreter, its libraries and the batches."""
SUMMARY = "train side by side with PyTorch under the same limit on memory"
DEFAULT_STEPS = 5
DEFAULT_AGAINST = "torch,torch-checkpoint"
TOLERANCE = MappingProxyType({"float32": 1e-3, "float64": 1e-8})
"""How far the losses of the first step may differ, relative to PyTorch's."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_network_arguments(command)
    command.add_argument(
        "--against",
        default=DEFAULT_AGAINST,
        metavar="SIDES",
        help=f"separated by commas: {', '.join(PEERS)} (default: {DEFAULT_AGAINST})",
    )
    command.add_argument(
        "--steps", type=int, default=DEFAULT_STEPS, help=f"timed on each side (default: {DEFAULT_STEPS})"
    )
    unset = f"--memory and {format_size(PROCESS_BYTES)} for the interpreter; without --memory there is none"
    add_limit_argument(command, None, unset)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What both sides run under.

    Attributes:
        limit_bytes: of each process; None without a limit.
        enforced: whether the kernel enforces it.
        reason: why it does not, where one was asked for.
        interleaved: whether steps are taken in turn; else one side after the other.
    """

    limit_bytes: int | None
    enforced: bool
    reason: str
    interleaved: bool


def run(options: argparse.Namespace) -> int:
    """Compare and report; status 1 when Bathyal does not fit, a side fails, or the losses differ."""
    names = _list_sides(options)
    setup = choose_network(options)
    require_torch()
    with open_sides(names, options, setup.settings) as (opened, conditions):
        if conditions.enforced:
            read_libraries()
        take_steps(opened, options.steps, conditions.interleaved)
    rows = [summarize_side(side, opened[0], setup) for side in opened]
    document = summarize_comparison(rows, setup, conditions, options.steps)
    if options.json:
        for line in (*rows, document):
            print(json.dumps(line), flush=True)
    else:
        print(report_comparison(rows, document), flush=True)
    good = rows[0]["fits"] and all(r["fits"] is not None and r["losses_agree"] is not False for r in rows)
    return 0 if good else 1


def _list_sides(options: argparse.Namespace) -> list[str]:
    against = list(dict.fromkeys(name.strip() for name in options.against.split(",") if name.strip()))
    if not against:
        raise ConfigError("--against", "one of " + ", ".join(PEERS), "none")
    for name in against:
        one_of("--against", name, list(PEERS))
    if options.steps < 1:
        raise ConfigError("--steps", "a whole number of at least 1", str(options.steps))
    require_computing(options)
    return [OURS, *against]


@contextmanager
def open_sides(
    names: Sequence[str], options: argparse.Namespace, settings: Settings
) -> Iterator[tuple[list[SideProcess], Conditions]]:
    """Make the sides, each with a limit of its own where that can be, and end them afterwards; none is started.

    Args:
        names: of the sides.
        options: of the command; each side builds its network from them.
        settings: that they give.
    """
    limit_bytes, reason, passed = read_limit(options), "", keep_plain(options)
    if limit_bytes is None and settings.memory is not None:
        limit_bytes = settings.memory + PROCESS_BYTES
    with ExitStack() as stack:
        limits: list[MemoryLimit | None] = [None for _ in names]
        if limit_bytes is not None:
            try:
                limits = [stack.enter_context(memory_limit(limit_bytes)) for _ in names]
            except DeviceError as error:
                reason = str(error)
        opened = [SideProcess(name, passed, limit) for name, limit in zip(names, limits, strict=True)]
        for side in opened:
            stack.callback(side.kill)
        enforced = limits[0] is not None
        together = not enforced or len(names) * (limit_bytes or 0) <= free_memory()
        yield opened, Conditions(limit_bytes, enforced, reason, together)


def take_steps(opened: Sequence[SideProcess], steps: int, interleaved: bool) -> None:
    """Run every side to its end: one step that warms up, then the timed ones, in turn where `interleaved`."""
    groups = [list(opened)] if interleaved else [[side] for side in opened]
    with tqdm(total=(steps + 2) * len(opened), unit="step", leave=False, disable=not sys.stderr.isatty()) as bar:
        for group in groups:
            for side in group:
                bar.set_description(f"open {side.name}")
                side.start()
                bar.update()
            for _ in range(steps + 1):
                for side in group:
                    bar.set_description(side.name)
                    side.step()
                    bar.update()
            for side in group:
                side.end()


def summarize_side(side: SideProcess, ours: SideProcess, setup: NetworkSetup) -> dict[str, Any]:
    """Return one side in numbers, for machines."""
    seconds, batch = side.seconds_per_step, setup.settings.input_shape[0]
    document: dict[str, Any] = {
        "side": side.name,
        "fits": side.fits,
        "message": side.message,
        "seconds_per_step": seconds,
        "images_per_second": batch / seconds if seconds else None,
        "peak_bytes": side.peak_bytes,
        "first_loss": side.losses[0] if side.losses else None,
        "loss_difference": None,
        "losses_agree": None,
        "ratio": None,
        **side.facts,
    }
    if side is not ours and side.losses and ours.losses:
        first, reference = ours.losses[0], side.losses[0]
        document["loss_difference"] = abs(first - reference) / max(abs(reference), sys.float_info.min)
        document["losses_agree"] = document["loss_difference"] <= TOLERANCE[setup.settings.dtype]
    if side is not ours and seconds and ours.seconds_per_step:
        document["ratio"] = ours.seconds_per_step / seconds
    return document


def summarize_comparison(
    rows: Sequence[Mapping[str, Any]], setup: NetworkSetup, conditions: Conditions, steps: int
) -> dict[str, Any]:
    """Return the whole comparison in numbers, for machines."""
    settings = setup.settings
    graph = forward_graph(setup.network, settings.input_shape, settings.dtype)
    compared = {r["side"]: r for r in rows if r["side"] != OURS}
    agree = [r["losses_agree"] for r in compared.values() if r["losses_agree"] is not None]
    return {
        "network": graph.name,
        "input_shape": list(settings.input_shape),
        "dtype": settings.dtype,
        "threads": settings.count_threads(),
        "steps": steps,
        "memory_bytes": settings.memory,
        "limit_bytes": conditions.limit_bytes,
        "limit_enforced": conditions.enforced,
        "limit_message": conditions.reason,
        "interleaved": conditions.interleaved,
        "dropout_removed": sum(op.kind == "dropout" for op in graph.ops),
        "fits": {r["side"]: r["fits"] for r in rows},
        "ratios": {name: r["ratio"] for name, r in compared.items()},
        "losses_agree": all(agree) if agree else None,
    }


def report_comparison(rows: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> str:
    """Return the whole comparison for people."""
    shape = "×".join(str(n) for n in document["input_shape"])
    lines = [
        f"{document['network']}: batch {shape} {document['dtype']}, {document['threads']} threads, "
        f"median of {document['steps']} steps, " + ("in turn" if document["interleaved"] else "one side after another")
    ]
    if document["limit_bytes"] is None:
        lines.append("no limit on memory; peaks are the resident memory of whole processes")
    elif document["limit_enforced"]:
        lines.append(f"each whole process in {format_size(document['limit_bytes'])}, enforced by the kernel")
    else:
        lines.append(f"the limit is NOT enforced, PyTorch takes what it wants: {document['limit_message']}")
    if document["dropout_removed"]:
        lines.append(f"dropout is left out on all sides ({document['dropout_removed']} layers)")
    lines.append(f"{'':<18}{'s per step':>12}{'images/s':>10}{'peak':>12}{'ours/theirs':>13}  first loss")
    for r in rows:
        peak = "" if r["peak_bytes"] is None else format_size(r["peak_bytes"])
        if not r["fits"]:
            verdict = "does not fit" if r["fits"] is False else "failed"
            lines.append(f"{r['side']:<18}{verdict}: {r['message']}")
            continue
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.3f}"
        loss = f"{r['first_loss']:.6f}" + (" DIFFERS" if r["losses_agree"] is False else "")
        lines.append(
            f"{r['side']:<18}{r['seconds_per_step']:>12.4g}{r['images_per_second']:>10.4g}{peak:>12}{ratio:>13}  {loss}"
        )
    return "\n".join(lines)
