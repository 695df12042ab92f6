"""Seconds of every kernel: measured once per signature inside the arena, kept on disk, or estimated by arithmetic.

Operands are laid into the arena, so profiling never needs more memory than training; a kernel whose operands do not fit
there is not timed but estimated. All kernels run in turn, several times over: as in a step, each finds the caches full
of something else, and an output may lie in the place of an input that dies. What is measured says nothing about
results: all operands are zeros, but for the step scalars, which are those of the first step.
"""

from __future__ import annotations

import hashlib
import logging
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ...layers.graph import STATE, Graph, Op, Role
from ...layers.kinds import inplace_pairs
from ...memory.devices.device import Device
from ...memory.errors import BathyalError, DeviceError
from ...memory.region import Region
from ...scheduler.plan.costs import CostTable, KernelCost, analytic_seconds, tabulate
from ...scheduler.plan.steps import align_address
from ..backends.backend import Backend, Kernel, Launch
from .timing_cache import TimingCache, read_timing_cache

logger = logging.getLogger(__name__)

REPETITIONS = 3
COMMITTED_BYTES = 16 * 2**20
"""Of the arena at least, where it has so much: room for the bytes that push others out of the caches."""
ENOUGH_SECONDS = 0.2
"""A kernel that takes longer is timed once after its warm-up."""


def estimate(graph: Graph, backend: Backend) -> CostTable:
    """Return a cost table by arithmetic alone, the same everywhere; only workspace tells kernels apart."""

    def kernels(op: Op) -> list[KernelCost]:
        seconds = analytic_seconds(graph, op)
        return [KernelCost(k.name, k.workspace_bytes, seconds) for k in backend.kernels(graph, op)]

    return tabulate(graph, kernels)


def measure(
    graph: Graph,
    backend: Backend,
    device: Device,
    *,
    threads: int,
    folder: Path | None,
    scalars: npt.NDArray[np.float64] | None = None,
    progress: bool = False,
) -> CostTable:
    """Time every kernel of every signature that is not known yet.

    Args:
        graph: lowered.
        backend: whose kernels are timed.
        device: where they run; the contents of its arena are overwritten.
        threads: how many the backend uses; figures are kept apart by it.
        folder: where figures are kept between runs; None keeps none.
        scalars: values of the step scalars, such as those of the first step; None leaves zeros.
        progress: whether a bar is shown on standard error.

    Raises:
        BudgetError: the memory that the arena promises is not free.
        DeviceError: a kernel fails; names it and its operation.
    """
    known = read_timing_cache(folder, f"{backend.name}/{backend.version()}/{threads} threads")
    jobs = _list_jobs(graph, backend, device.arena, known)
    with tqdm(
        total=len(jobs) * (REPETITIONS + 1), desc="profile", unit="run", leave=False, disable=not progress
    ) as bar:
        for _ in range(REPETITIONS + 1):
            for job in jobs:
                if sum(job.times[1:]) < ENOUGH_SECONDS:
                    job.times.append(_run(job, device, scalars))
                bar.update()
    for job in jobs:
        known.add(job.key, statistics.median(job.times[1:]))
    known.save()

    def kernels(op: Op) -> list[KernelCost]:
        rows = []
        for kernel in backend.kernels(graph, op):
            seconds = known.find(_key(graph, op, kernel))
            seconds = analytic_seconds(graph, op) if seconds is None else seconds
            rows.append(KernelCost(kernel.name, kernel.workspace_bytes, seconds))
        return rows

    return tabulate(graph, kernels)


@dataclass(slots=True)
class _Job:
    """A kernel to be timed.

    Attributes:
        key: of its seconds.
        where: the operation and the kernel, for people.
        launch: runs it.
        addresses: of its operands and its workspace.
        end: of all of them.
        scalars: addresses of the step scalars among them.
        times: seconds of its runs so far; the first warms up.
    """

    key: str
    where: str
    launch: Launch
    addresses: list[int]
    end: int
    scalars: list[int]
    times: list[float]


def _list_jobs(graph: Graph, backend: Backend, arena: Region, known: TimingCache) -> list[_Job]:
    """List one job for each kernel whose seconds are not known and whose operands fit."""
    last_read = find_last_readers(graph)
    seen: set[str] = set()
    jobs = []
    for op in graph.ops:
        for index, kernel in enumerate(backend.kernels(graph, op)):
            key = _key(graph, op, kernel)
            if key in seen or known.find(key) is not None:
                continue
            seen.add(key)
            addresses, end = place_operands(graph, op, kernel.workspace_bytes, last_read)
            if end > arena.nbytes:
                logger.info("%s of %s: %d bytes of operands do not fit; not timed", kernel.name, op.name, end)
                continue
            where = f"{op.name} ({op.kind}), kernel {kernel.name!r}"
            read = zip(op.inputs, addresses, strict=False)
            fed = [address for t, address in read if _is_step_scalars(graph, t)]
            jobs.append(_Job(key, where, backend.bind(graph, op, index, False, arena), addresses, end, fed, []))
    return jobs


def _is_step_scalars(graph: Graph, tensor: int) -> bool:
    return graph.tensors[tensor].role is Role.SCALARS and graph.tensors[tensor].dtype == "float64"


def _run(job: _Job, device: Device, scalars: npt.NDArray[np.float64] | None) -> float:
    """Run a job once and return its seconds: on zeros that no cache near the processor holds, as a step finds them."""
    device.arena.commit(min(device.arena.nbytes, max(job.end, COMMITTED_BYTES)))
    device.arena.poison(0, 0, job.end)
    if scalars is not None and job.scalars:
        for address in job.scalars:
            device.upload(device.inward, address, scalars)
        device.inward.synchronize()
    try:
        return device.seconds(lambda: job.launch(job.addresses))
    except BathyalError:
        raise
    except Exception as error:
        hint = "Before the first step every kernel is timed so. costs='analytic' times none."
        expected = "a run on zeros, with the step scalars of the first step"
        raise DeviceError(job.where, expected, f"{type(error).__name__}: {error}", hint) from error


def _key(graph: Graph, op: Op, kernel: Kernel) -> str:
    return hashlib.sha256(repr((graph.signature(op), kernel.name)).encode()).hexdigest()[:32]


def find_last_readers(graph: Graph) -> dict[int, int]:
    """Return, by tensor, the last operation that reads it."""
    return {t: op.id for op in graph.ops for t in op.inputs}


def place_operands(graph: Graph, op: Op, workspace_bytes: int, last_read: Mapping[int, int]) -> tuple[list[int], int]:
    """Return addresses of an operation's operands and workspace, beginning at 0, and the address behind them all.

    An output lies where an input dies, if its kind allows that, as in a plan.

    Args:
        graph: lowered.
        op: one of its operations.
        workspace_bytes: what its kernel needs.
        last_read: from `find_last_readers`.
    """
    addresses, end = [], 0
    for t in op.inputs:
        addresses.append(end)
        end += align_address(graph.tensors[t].nbytes)
    over: dict[int, int] = {}
    for to, source in inplace_pairs(op):
        if to < len(op.outputs) and source < len(op.inputs):
            old, new = graph.tensors[op.inputs[source]], graph.tensors[op.outputs[to]]
            if old.role not in STATE and last_read[old.id] == op.id and old.nbytes == new.nbytes:
                over.setdefault(to, addresses[source])
    for position, t in enumerate(op.outputs):
        addresses.append(over.get(position, end))
        end += 0 if position in over else align_address(graph.tensors[t].nbytes)
    addresses.append(end)
    return addresses, end + align_address(workspace_bytes)
