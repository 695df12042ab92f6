"""Measured seconds, kept on disk between runs: one JSON file for each library and machine."""

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


def find_cache_folder() -> Path:
    """Return the folder where measured seconds are kept: `$XDG_CACHE_HOME/bathyal`, by default `~/.cache/bathyal`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bathyal"


def read_timing_cache(folder: Path | None, environment: str) -> TimingCache:
    """Read what was measured before.

    Args:
        folder: where the file lies; None keeps nothing.
        environment: what the figures belong to, beside the processor.
    """
    digest = hashlib.sha256(f"{environment}/{_name_processor()}".encode()).hexdigest()[:16]
    path = None if folder is None else folder / f"costs-{digest}.json"
    return TimingCache(path, _read_seconds(path))


class TimingCache:
    """Figures of one library and machine; see `read_timing_cache`.

    Args:
        path: the file that keeps them; None keeps nothing.
        seconds: what is known, by key.
    """

    def __init__(self, path: Path | None, seconds: dict[str, float]) -> None:
        self._path = path
        self._seconds = seconds
        self._changed = False

    def find(self, key: str) -> float | None:
        """Return the seconds that are known under a key; None where none are."""
        return self._seconds.get(key)

    def add(self, key: str, seconds: float) -> None:
        """Note what was measured."""
        self._seconds[key] = seconds
        self._changed = True

    def save(self) -> None:
        """Write what is new beside what others have written meanwhile; a failure is logged, since the run goes on."""
        if self._path is None or not self._changed:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            seconds = {**_read_seconds(self._path), **self._seconds}
            write_whole(self._path, json.dumps({"format": FORMAT, "seconds": seconds}).encode())
        except (OSError, ConfigError) as error:
            logger.warning("could not keep the measured seconds in %s: %s", self._path, error)


def _read_seconds(path: Path | None) -> dict[str, float]:
    """Return what a file holds; a damaged or foreign one counts as empty."""
    if path is None or not path.exists():
        return {}
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            return {}
        return {str(k): float(v) for k, v in document["seconds"].items() if 0 <= float(v) < math.inf}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s is not readable (%s); measuring again", path, error)
        return {}


def _name_processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "")
