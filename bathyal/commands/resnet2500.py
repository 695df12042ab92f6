"""`bathyal resnet2500`: train the network of 2,498 layers on synthetic images, and say what it took.

The network is the (6, 32, 788, 6) of the SuperNeurons paper as the paper has it. Training is `bathyal train`'s; here
are other defaults, a limit on the whole process that the kernel enforces, and a report. Where `--limit` is given, the
command starts itself again inside of it. Does not check whether the network learns: the images are random.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..comparison.limited import run_limited
from ..memory.sizes import format_size
from ..models.resnet import RESNET_2500
from ..options.arguments import parse_file_name
from ..options.deep import add_deep_arguments, make_training_options
from ..options.limit import read_limit
from ..reports.numbers import finite_or_none
from ..reports.training import report_transfers
from ..training.run import carry_out, report_end

SUMMARY = "train a network of 2,498 layers in little memory"
MEMORY = "560 MiB"
"""Arena that leaves the process itself, with graph, plan and bound steps, enough of 1 GiB."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_deep_arguments(command, batch=1, memory=MEMORY, limit=None)
    command.add_argument("--steps", type=int, default=2, help="(default: 2)")
    command.add_argument("--plan", type=parse_file_name, default=None, metavar="FILE", help="follow a saved plan")
    command.add_argument("--n", type=int, nargs=4, default=RESNET_2500, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Train and report, inside the limit where one is given."""
    # An empty limit is none: the command starts itself again with it.
    limit_bytes = read_limit(options) if options.limit else None
    if limit_bytes is not None:
        return run_inside_limit(options.command_line, limit_bytes, json_lines=options.json)
    training = make_training_options(options, options.n)
    trained = carry_out(training)
    document = trained.document | {"losses": [finite_or_none(r.loss) for r in trained.results]}
    print(json.dumps(document) if options.json else report_run(document), flush=True)
    return report_end(training, trained)


def run_inside_limit(command_line: Sequence[str], limit_bytes: int, *, json_lines: bool) -> int:
    """Start a command again inside a limit, report what the kernel counted, and return the exit status.

    Args:
        command_line: its name and what it takes.
        limit_bytes: what it may use.
        json_lines: whether it prints lines of JSON.

    Raises:
        BudgetError: it was killed.
        DeviceError: no limit can be made here.
    """
    ended = run_limited([*command_line, "--limit="], limit_bytes, read=json_lines)
    for document in ended.documents[:-1]:
        print(json.dumps(document), flush=True)
    if ended.documents:
        counted = {"limit_bytes": limit_bytes, "limit_peak_bytes": ended.peak_bytes}
        print(json.dumps({**ended.documents[-1], **counted}), flush=True)
    elif ended.peak_bytes is not None and not ended.status:
        peak = format_size(ended.peak_bytes)
        print(f"kernel's count  {peak:>12}  of {format_size(limit_bytes)} enforced", flush=True)
    return ended.status


def report_run(document: Mapping[str, Any]) -> str:
    """Return the run for people."""
    lines = []
    for number, loss in enumerate(document["losses"], document["steps"] - len(document["losses"]) + 1):
        lines.append(f"step {number}: loss " + ("not finite" if loss is None else f"{loss:.6f}"))
    lines.append(f"{document['layers']} layers, {document['parameters'] / 1e6:.1f} M parameters")
    sizes = (
        ("budget", "budget_bytes"),
        ("predicted peak", "peak_bytes"),
        ("measured peak", "arena_high_water_bytes"),
        ("outside", "outside_bytes"),
        ("whole process", "process_peak_bytes"),
    )
    for name, key in sizes:
        if document[key] is not None:
            lines.append(f"{name:<16}{format_size(document[key]):>12}  ({document[key]} bytes)")
    seconds = document["seconds_per_step"]
    measured = "" if seconds is None else f", {seconds:.4g} s measured"
    lines.append(f"seconds a step  {document['predicted_seconds']:.4g} s predicted{measured}")
    if document["hidden_share"] is not None:
        lines.append(report_transfers(document))
    lines.append(f"weights sha256  {document['weights_sha256']}")
    return "\n".join(lines)
