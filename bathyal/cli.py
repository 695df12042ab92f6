"""The command line: which commands there are, and errors in one line.

Exit status: 0 done; 1 an error that the message explains, or no plan within the budget; 2 arguments that do not parse;
130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from . import __version__
from .commands import compare, curve, depth, info, plan, resnet2500, train
from .memory.errors import BathyalError


class Command(Protocol):
    """What a module in `commands/` holds.

    Attributes:
        SUMMARY: the command in a line.
    """

    SUMMARY: str

    def add_arguments(self, command: argparse.ArgumentParser) -> None:
        """Add what the command takes to its parser."""

    def run(self, options: argparse.Namespace) -> int:
        """Run the command and return its exit status.

        `options.command_line` holds all words behind `bathyal`, for a command that starts itself again.
        """


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "train": train,
        "plan": plan,
        "curve": curve,
        "compare": compare,
        "resnet2500": resnet2500,
        "depth": depth,
        "info": info,
    }
)
"""The commands by name: one more is a file in `commands/` and an entry here."""

VERBOSE = "say why plans are rejected and what is saved"


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="bathyal", description="Train networks deeper than the memory: give a network and a number of bytes."
    )
    top.add_argument("-V", "--version", action="version", version=f"bathyal {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help=VERBOSE)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        made = commands.add_parser(name, help=command.SUMMARY, description=command.__doc__, formatter_class=_Formatter)
        command.add_arguments(made)
        # Before or behind the command; without a default here, the first is not forgotten.
        made.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=VERBOSE)
        made.set_defaults(run=command.run)
    return top


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help with the lines of the description as they are."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    given = tuple(sys.argv[1:] if arguments is None else arguments)
    options = make_parser().parse_args(given)
    options.command_line = given
    return report_errors(lambda: int(options.run(options)), verbose=options.verbose)


def report_errors(run: Callable[[], int], *, verbose: bool = False) -> int:
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
