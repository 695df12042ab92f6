"""The option `--limit`: the bytes that a whole process may use, enforced by the kernel."""

from __future__ import annotations

import argparse

from ..memory.sizes import parse_size


def add_limit_argument(command: argparse.ArgumentParser, default: str | None, unset: str) -> None:
    """Add `--limit` to a command.

    Args:
        command: its parser.
        default: where the option is not given.
        unset: what the default None means, for people.
    """
    means = unset if default is None else "%(default)s"
    command.add_argument(
        "--limit",
        default=default,
        metavar="SIZE",
        help=f"of each whole process, enforced by the kernel; needs root (default: {means})",
    )


def read_limit(options: argparse.Namespace) -> int | None:
    """Return the limit in bytes; None where none was given.

    Raises:
        ConfigError: it is not a size.
    """
    return None if options.limit is None else parse_size(options.limit, "--limit")
