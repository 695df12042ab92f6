"""The command line: what each command takes, and errors in one line.

Exit status: 0 done; 1 an error that the message explains, or no plan within the budget; 2 arguments that do not parse;
130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from .commands import compare as compare_command
from .commands import curve as curve_command
from .commands import info as info_command
from .commands import plan as plan_command
from .commands import train as train_command
from .engine.backends.cuda.graphs import MATH
from .engine.settings import BACKENDS, COSTS
from .layers.builder import DTYPES
from .memory.errors import BathyalError
from .scheduler.layout.kernels import Kernels
from .scheduler.strategies.names import list_spellings


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="bathyal", description="Train networks deeper than the memory: give a network and a number of bytes."
    )
    top.add_argument("-v", "--verbose", action="store_true", help="say why plans are rejected and what is saved")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a network within a budget of memory")
    _network(train)
    train_command.add_arguments(train)
    train.set_defaults(run=train_command.run)

    plan = commands.add_parser("plan", help="say how a network would be trained within a budget, without training it")
    _network(plan)
    plan_command.add_arguments(plan)
    plan.set_defaults(run=plan_command.run)

    curve = commands.add_parser("curve", help="what a step takes at budgets from the least to no limit, by strategy")
    _network(curve, budget=False)
    curve_command.add_arguments(curve)
    curve.set_defaults(run=curve_command.run)

    compare = commands.add_parser("compare", help="train side by side with PyTorch under the same limit on memory")
    _network(compare)
    compare_command.add_arguments(compare)
    compare.set_defaults(run=compare_command.run)

    info = commands.add_parser("info", help="say what this machine and this installation offer")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=info_command.run)
    return top


def _network(command: argparse.ArgumentParser, *, budget: bool = True) -> None:
    """The arguments that say what is planned and how, by default with a budget and a strategy."""
    command.add_argument("model", help="a bundled network, see `bathyal info`, or resnet:N1,N2,N3,N4")
    command.add_argument("--batch", type=int, default=None, help="images per step")
    command.add_argument("--image", type=int, default=None, help="side of the images in pixels")
    command.add_argument("--classes", type=int, default=None, help="number of classes")
    command.add_argument("--variant", default=None, help="'today' or 'paper', where a network has both")
    if budget:
        command.add_argument(
            "--memory", default=None, help="the budget: '400 MiB', '1 GB', bytes; default: 80 %% of free"
        )
        command.add_argument("--strategy", default="auto", help=f"one of {', '.join(list_spellings())} (default: auto)")
        command.add_argument(
            "--spill-dir", default=None, metavar="FOLDER", help="where tensors may be moved to, on a disk"
        )
        command.add_argument(
            "--spill-size", default=None, metavar="SIZE", help="the most bytes there (default: what the disk has free)"
        )
    command.add_argument(
        "--link",
        default=None,
        metavar="OUT,IN",
        help="bytes per second at which tensors can leave memory and come back, as in '600 MB,1.5 GB'; measured by "
        "default where a strategy moves tensors",
    )
    command.add_argument(
        "--kernels",
        choices=[k.value for k in Kernels],
        default="fit",
        help="'fit': the fastest that fits the free bytes; 'fixed': the same for every budget (default: fit)",
    )
    command.add_argument(
        "--device", choices=["auto", *BACKENDS], default="auto", help="what computes; 'null' plans any size"
    )
    command.add_argument(
        "--math",
        choices=MATH,
        default="float32",
        help="of a GPU: 'float32'; 'tf32', faster with factors of 10 bits of mantissa; 'bf16', with images in 16 bits "
        "(default: float32)",
    )
    command.add_argument(
        "--no-cuda-graphs",
        dest="cuda_graphs",
        action="store_false",
        help="launch a GPU's step operation by operation",
    )
    command.add_argument(
        "--costs", choices=COSTS, default="measured", help="measured on this machine, or by arithmetic"
    )
    command.add_argument("--dtype", choices=DTYPES, default="float32", help="type of all numbers (default: float32)")
    command.add_argument("--threads", type=int, default=None, help="of the backend (default: all cores)")
    command.add_argument("--seed", type=int, default=0, help="of first values, dropout and shuffling (default: 0)")
    command.add_argument("--lr", type=float, default=None, help="learning rate (default: 0.1)")
    command.add_argument("--momentum", type=float, default=0.9, help="(default: 0.9)")
    command.add_argument("--weight-decay", type=float, default=0.0, help="(default: 0)")
    command.add_argument("--nesterov", action="store_true", help="Nesterov's momentum")
    command.add_argument("--json", action="store_true", help="print one JSON object per line")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = parser().parse_args(arguments)
    return reported(lambda: options.run(options), verbose=options.verbose)


def reported(run: Callable[[], int], *, verbose: bool = False) -> int:
    """Run a command; an error becomes one line on standard error, and an exit status."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(levelname)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        status = run()
        sys.stdout.flush()  # at exit, an error of writing could no longer be reported
        return status
    except BathyalError as error:
        print(f"bathyal: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bathyal: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # whoever read it has seen enough
        return 1
    except OSError as error:
        _drop_output()
        print(f"bathyal: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Keep the interpreter from writing what is left, and from complaining that it cannot, at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
