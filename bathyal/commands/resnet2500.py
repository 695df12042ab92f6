"""`python -m bathyal.resnet2500`: train the network of 2,498 layers on synthetic images, and say what it took.

The network is the (6, 32, 788, 6) of the SuperNeurons paper as the paper has it. Training is `bathyal train`'s; here
are other defaults, a limit on the whole process that the kernel enforces, and a report. Where `--limit` is given, the
command starts itself again inside of it. Does not check whether the network learns: the images are random.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .. import cli
from ..comparison.limited import run_limited
from ..engine.settings import COSTS
from ..memory.errors import ConfigError
from ..memory.sizes import format_size, parse_size
from ..models.resnet import RESNET_2500
from ..scheduler.layout.kernels import Kernels
from ..scheduler.strategies.names import list_spellings
from . import train as train_command

MODULE = "bathyal.commands.resnet2500"
MEMORY = "560 MiB"
"""Arena that leaves the process itself, with graph, plan and bound steps, enough of 1 GiB."""
LEARNING_RATE = 0.01
CLASSES = 1000


def add_arguments(command: argparse.ArgumentParser, *, batch: int, memory: str | None, limit: str | None) -> None:
    """What both scripts on deep networks take."""
    command.add_argument("--batch", type=int, default=batch, help=f"images a step (default: {batch})")
    command.add_argument("--image", type=int, default=227, help="side of the images in pixels (default: 227)")
    command.add_argument("--memory", default=memory, help=f"the arena (default: {memory or 'what --limit leaves'})")
    command.add_argument(
        "--limit",
        default=limit,
        help=f"of the whole process, enforced by the kernel; needs root (default: {limit or 'none'})",
    )
    command.add_argument("--strategy", default="stream", help=f"one of {', '.join(list_spellings())} (default: stream)")
    command.add_argument(
        "--kernels", choices=[k.value for k in Kernels], default="fixed", help="as for `bathyal train` (default: fixed)"
    )
    command.add_argument("--costs", choices=COSTS, default="measured", help="measured here, or by arithmetic")
    command.add_argument("--link", default=None, metavar="OUT,IN", help="as for `bathyal train` (default: measured)")
    command.add_argument("--spill-dir", default=None, metavar="FOLDER", help="where tensors may be moved to, on a disk")
    command.add_argument("--spill-size", default=None, metavar="SIZE", help="the most bytes there")
    command.add_argument("--threads", type=int, default=None, help="of the backend (default: all cores)")
    command.add_argument("--seed", type=int, default=0, help="of first values and images (default: 0)")
    command.add_argument("--json", action="store_true", help="print one JSON object per line")
    command.add_argument("-v", "--verbose", action="store_true", help="say why plans are rejected")


def parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    made = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Train ResNet2500 in little memory.")
    add_arguments(made, batch=1, memory=MEMORY, limit=None)
    made.add_argument("--steps", type=int, default=2, help="(default: 2)")
    made.add_argument("--plan", default=None, metavar="FILE", help="follow a saved plan")
    made.add_argument("--n", type=int, nargs=4, default=RESNET_2500, help=argparse.SUPPRESS)
    return made


def training_options(options: argparse.Namespace, blocks: Sequence[int]) -> argparse.Namespace:
    """The same as options of `bathyal train`.

    Raises:
        ConfigError: a number that makes no sense.
    """
    if min(blocks) < 1:
        raise ConfigError("--n", "four positive whole numbers of blocks", " ".join(map(str, blocks)))
    arguments = ["train", "resnet:" + ",".join(map(str, blocks)), "--variant", "paper"]
    arguments += ["--classes", str(CLASSES), "--lr", str(LEARNING_RATE)]
    for name in (
        "batch",
        "image",
        "memory",
        "strategy",
        "kernels",
        "costs",
        "link",
        "threads",
        "seed",
        "plan",
        "steps",
    ):
        if getattr(options, name, None) is not None:
            arguments.append(f"--{name}={getattr(options, name)}")
    for name, value in (("dir", options.spill_dir), ("size", options.spill_size)):
        if value is not None:
            arguments.append(f"--spill-{name}={value}")
    return cli.parser().parse_args([*arguments, *(["--json"] if options.json else [])])


def run(options: argparse.Namespace) -> int:
    """Train and report."""
    training = training_options(options, options.n)
    trained = train_command.carry_out(training)
    document = trained.document | {"losses": [train_command.finite(r.loss) for r in trained.results]}
    print(json.dumps(document) if options.json else report(document), flush=True)
    return train_command.status(training, trained)


def report(document: Mapping[str, Any]) -> str:
    """The run for people."""
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
        lines.append(train_command.transfers(document))
    lines.append(f"weights sha256  {document['weights_sha256']}")
    return "\n".join(lines)


def run_inside_limit(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Start this command again inside the limit, and report what the kernel counted.

    Raises:
        BudgetError: it was killed.
        DeviceError: no limit can be made here.
    """
    limit_bytes = parse_size(options.limit, "--limit")
    ended = run_limited(MODULE, [*arguments, "--limit="], limit_bytes, read=options.json)
    for document in ended.documents[:-1]:
        print(json.dumps(document), flush=True)
    if ended.documents:
        counted = {"limit_bytes": limit_bytes, "limit_peak_bytes": ended.peak_bytes}
        print(json.dumps({**ended.documents[-1], **counted}), flush=True)
    elif ended.peak_bytes is not None and not ended.status:
        peak = format_size(ended.peak_bytes)
        print(f"kernel's count  {peak:>12}  of {format_size(limit_bytes)} enforced", flush=True)
    return ended.status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status, as `bathyal` does."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    return cli.reported(
        lambda: run_inside_limit(options, given) if options.limit else run(options), verbose=options.verbose
    )


if __name__ == "__main__":
    sys.exit(main())
