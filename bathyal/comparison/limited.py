"""A command that starts itself again inside a limit on memory that the kernel enforces.

The outer process makes the cgroup, starts the inner one in it from its first byte on, hands signals on, and adds what
the kernel counted. Does not check what the inner process does.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..memory.errors import BudgetError
from ..memory.process.limit import MemoryLimit, memory_limit
from ..memory.sizes import format_size_exact
from .process import make_environment

MODULE = "bathyal"


@dataclass(frozen=True, slots=True)
class LimitedEnd:
    """How a command inside a limit ended.

    Attributes:
        status: of its process.
        documents: the lines of JSON that it printed, where they were asked for.
        peak_bytes: the most memory that it used, by the kernel's count; None where the kernel does not say.
        interrupted: whether somebody asked this process to stop meanwhile.
    """

    status: int
    documents: tuple[dict[str, Any], ...]
    peak_bytes: int | None
    interrupted: bool = False


def run_limited(arguments: Sequence[str], limit_bytes: int, *, read: bool) -> LimitedEnd:
    """Run a command of ours inside a limit and wait for its end.

    Args:
        arguments: its name and what it takes, as they stand behind `bathyal`.
        limit_bytes: what it may use, the interpreter and its libraries included.
        read: whether its standard output is lines of JSON to be read; else it is ours.

    Raises:
        BudgetError: the kernel ended it for want of memory.
        DeviceError: no limit can be made here.
    """
    with memory_limit(limit_bytes) as limit:
        command = limit.command([sys.executable, "-m", MODULE, *arguments])
        # A session of its own: Ctrl-C would else reach the inner process twice, and the second one ends it at once.
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE if read else None,
            text=True,
            env=make_environment(),
            start_new_session=True,
        )
        with process, hand_on_signals(process) as handed:
            printed = "" if process.stdout is None else process.stdout.read()
            status = process.wait()
        if status == -signal.SIGKILL:
            raise make_killed_error(limit)
        return LimitedEnd(
            status, tuple(json.loads(line) for line in printed.splitlines()), limit.peak_bytes(), bool(handed)
        )


def make_killed_error(limit: MemoryLimit) -> BudgetError:
    """Return the error for a process that was killed."""
    counted = "killed by the kernel" if limit.kills() else "killed, as for want of memory"
    return BudgetError(
        "--limit",
        f"a whole process within {format_size_exact(limit.limit_bytes)}",
        counted,
        "Give a smaller --memory, or a larger --limit.",
    )


@contextmanager
def hand_on_signals(process: subprocess.Popen[str]) -> Iterator[list[int]]:
    """Hand SIGINT and SIGTERM on to a process instead of ending here; the list holds those that came."""
    handed: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        handed.append(number)
        process.send_signal(number)

    earlier = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield handed
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
