"""Seconds of every kernel: measured once per signature inside the arena, kept on disk, or estimated by arithmetic.

Operands are laid at the start of the arena, so profiling never needs more memory than training; a kernel whose
operands do not fit there is not timed but estimated. What is measured says nothing about results: the operands are
whatever the arena holds, zeros when it is new.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from ..layers.graph import Graph, Op
from ..memory.arena import Arena
from ..scheduler.costs import CostTable, KernelCost, analytic_seconds, tabulate
from ..scheduler.plan import aligned
from .backends.backend import Backend, Kernel

logger = logging.getLogger(__name__)

FORMAT = 1
REPETITIONS = 3
ENOUGH_SECONDS = 0.2
"""A kernel that takes longer is timed once after its warm-up."""


def cache_folder() -> Path:
    """Where measured seconds are kept: `$XDG_CACHE_HOME/bathyal`, by default `~/.cache/bathyal`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bathyal"


def estimate(graph: Graph, backend: Backend) -> CostTable:
    """A cost table by arithmetic alone: the same on every machine; kernels of one operation differ only by workspace."""

    def kernels(op: Op) -> list[KernelCost]:
        seconds = analytic_seconds(graph, op)
        return [KernelCost(k.name, k.workspace_bytes, seconds) for k in backend.kernels(graph, op)]

    return tabulate(graph, kernels)


def measure(
    graph: Graph, backend: Backend, arena: Arena, *, threads: int, folder: Path | None, progress: bool = False
) -> CostTable:
    """Time every kernel of every signature.

    Args:
        graph: lowered.
        backend: whose kernels are timed.
        arena: its contents are overwritten.
        threads: how many the backend uses; figures are kept apart by it.
        folder: where figures are kept between runs; None keeps none.
        progress: whether a bar is shown on standard error.
    """
    store = _Store(folder, f"{backend.name}/{backend.version()}/{threads} threads")
    signatures = len({graph.signature(op) for op in graph.ops})
    with tqdm(total=signatures, desc="profile", unit="op", leave=False, disable=not progress) as bar:

        def kernels(op: Op) -> list[KernelCost]:
            bar.update()
            rows = []
            for index, kernel in enumerate(backend.kernels(graph, op)):
                timing = _timing(graph, op, index, kernel, backend, arena)
                rows.append(KernelCost(kernel.name, kernel.workspace_bytes, store.get(_key(graph, op, kernel), timing)))
            return rows

        table = tabulate(graph, kernels)
    store.save()
    return table


def _key(graph: Graph, op: Op, kernel: Kernel) -> str:
    return hashlib.sha256(repr((graph.signature(op), kernel.name)).encode()).hexdigest()[:32]


def _timing(graph: Graph, op: Op, index: int, kernel: Kernel, backend: Backend, arena: Arena) -> Callable[[], float]:
    def seconds() -> float:
        addresses, end = [], 0
        for t in (*op.inputs, *op.outputs):
            addresses.append(end)
            end += aligned(graph.tensors[t].nbytes)
        addresses.append(end)
        end += aligned(kernel.workspace_bytes)
        if end > arena.nbytes:
            logger.info("%s of %s: %d bytes of operands do not fit; not timed", kernel.name, op.name, end)
            return analytic_seconds(graph, op)
        arena.memory[:end] = 0
        launch = backend.bind(graph, op, index, False, arena)
        launch(addresses)
        times: list[float] = []
        while len(times) < REPETITIONS and sum(times) < ENOUGH_SECONDS:
            begin = time.perf_counter()
            launch(addresses)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    return seconds


class _Store:
    """Figures of one library and machine, in one JSON file; a damaged or foreign file counts as empty."""

    def __init__(self, folder: Path | None, environment: str) -> None:
        digest = hashlib.sha256(f"{environment}/{_processor()}".encode()).hexdigest()[:16]
        self._path = None if folder is None else folder / f"costs-{digest}.json"
        self._seconds: dict[str, float] = self._read()
        self._changed = False

    def get(self, key: str, measure_seconds: Callable[[], float]) -> float:
        if key not in self._seconds:
            self._seconds[key] = measure_seconds()
            self._changed = True
        return self._seconds[key]

    def _read(self) -> dict[str, float]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            document = json.loads(self._path.read_text())
            if document["format"] != FORMAT:
                return {}
            return {str(k): float(v) for k, v in document["seconds"].items() if float(v) >= 0}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("%s is not readable (%s); measuring again", self._path, error)
            return {}

    def save(self) -> None:
        if self._path is None or not self._changed:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                json.dump({"format": FORMAT, "seconds": {**self._read(), **self._seconds}}, file)
            Path(file.name).replace(self._path)
        except OSError as error:
            logger.warning("could not keep the measured seconds in %s: %s", self._path, error)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "")
