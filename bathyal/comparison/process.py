"""A side of a comparison seen from outside: a process that is asked for steps, and how it ended.

A side that the kernel ends, or that refuses its budget, does not fit; any other failure is told as one. The other sides
go on in both cases. The kernel counts the pages of a library's file for the group that touches them first, so they are
read before, outside of all groups: code counts for no side, and no side waits for the disk. Does not check what a side
computes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..memory.process.limit import MemoryLimit

MODULE = "bathyal.comparison.side"


def make_environment() -> dict[str, str]:
    """Return an environment in which Python imports no file of the user's working folder, as `-m` would."""
    return {**os.environ, "PYTHONSAFEPATH": "1"}


def keep_plain(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that JSON can hold, by name, for a process that builds the same network from them."""
    return {name: value for name, value in vars(options).items() if isinstance(value, (int, float, str, type(None)))}


def read_libraries() -> None:
    """Bring the files of all libraries into memory, in a process outside of every limited group."""
    code = f"import {MODULE}, torch"
    subprocess.run([sys.executable, "-c", code], env=make_environment(), capture_output=True, check=False)


class SideProcess:
    """One side, running until `end` or `kill`.

    Attributes:
        name: of the side.
        seconds: of each step so far, the first one (it warms up) included.
        losses: of each step so far; NaN where it is not finite.
        facts: what the side tells of itself.
        fits: False once memory was too small, None after another failure.
        message: why, where it does not fit or failed.
        peak_bytes: known after the end; None where nobody counts.
    """

    def __init__(self, name: str, options: Mapping[str, Any], limit: MemoryLimit | None) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.facts: dict[str, Any] = {}
        self.fits: bool | None = True
        self.message = ""
        self.peak_bytes: int | None = None
        self._options = dict(options)
        self._limit = limit
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by `kill`
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process and wait until it is ready for its first step."""
        command = [sys.executable, "-m", MODULE]
        self._process = subprocess.Popen(
            command if self._limit is None else self._limit.command(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=make_environment(),
        )
        self.facts = self._ask({"side": self.name, "options": self._options})
        self.facts.pop("ready", None)

    def step(self) -> None:
        """Train on one batch; nothing where the side has failed."""
        answer = self._ask("step")
        if answer:
            self.seconds.append(answer["seconds"])
            self.losses.append(math.nan if answer["loss"] is None else answer["loss"])

    def end(self) -> None:
        """Let the process end and learn what it took."""
        self.peak_bytes = self._ask("end").get("peak_bytes")
        if self._limit is not None:
            self.peak_bytes = self._limit.peak_bytes() or self.peak_bytes
        self.kill()

    def kill(self) -> None:
        """End the process at once, where it still runs; may be called twice."""
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None
        self._errors.close()

    @property
    def seconds_per_step(self) -> float | None:
        """The median without the first step; None without a step."""
        return statistics.median(self.seconds[1:] or self.seconds) if self.seconds and self.fits else None

    def _ask(self, message: object) -> dict[str, Any]:
        """Ask and wait for the answer; without one, say why and answer nothing from then on."""
        if self._process is None or not self.fits:
            return {}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            self._explain_end(self._process.wait())
            return {}
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.fits, self.message = False if answer["memory"] else None, answer["error"]
            return {}
        return answer

    def _explain_end(self, status: int) -> None:
        if status == -signal.SIGKILL:
            counted = self._limit is not None and self._limit.kills()
            self.fits, self.message = False, "killed: out of memory" if counted else "killed, as for want of memory"
            return
        self._errors.seek(0)
        text = self._errors.read().strip()
        self.fits, self.message = None, text.splitlines()[-1] if text else f"ended with status {status}"
