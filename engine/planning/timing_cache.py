"""Measured seconds, kept on disk between runs."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from pathlib import Path

from ...memory.errors import ConfigError
from ..atomic_write import write_whole

logger = logging.getLogger(__name__)

FORMAT = 3


def cache_folder() -> Path:
    """Where measured seconds are kept: `$XDG_CACHE_HOME/bathyal`, by default `~/.cache/bathyal`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bathyal"


class SecondsStore:
    """Figures of one library and machine, in one JSON file; a damaged or foreign file counts as empty."""

    def __init__(self, folder: Path | None, environment: str) -> None:
        """Read what is known.

        Args:
            folder: where the file lies; None keeps nothing.
            environment: what the figures belong to, beside the processor.
        """
        digest = hashlib.sha256(f"{environment}/{_processor()}".encode()).hexdigest()[:16]
        self._path = None if folder is None else folder / f"costs-{digest}.json"
        self._seconds: dict[str, float] = self._read()
        self._changed = False

    def seconds(self, key: str) -> float | None:
        """What is known under a key."""
        return self._seconds.get(key)

    def add(self, key: str, seconds: float) -> None:
        """Note what was measured."""
        self._seconds[key] = seconds
        self._changed = True

    def _read(self) -> dict[str, float]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            document = json.loads(self._path.read_text())
            if document["format"] != FORMAT:
                return {}
            return {str(k): float(v) for k, v in document["seconds"].items() if 0 <= float(v) < math.inf}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("%s is not readable (%s); measuring again", self._path, error)
            return {}

    def save(self) -> None:
        """Write what is new beside what others have written meanwhile; that it cannot be kept is no error."""
        if self._path is None or not self._changed:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(
                self._path, json.dumps({"format": FORMAT, "seconds": {**self._read(), **self._seconds}}).encode()
            )
        except (OSError, ConfigError) as error:
            logger.warning("could not keep the measured seconds in %s: %s", self._path, error)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "")
