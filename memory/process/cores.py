"""How many processor cores this process may use at once.

The answer is the least of three: the cores that its affinity allows, which cpusets bound too; the quota of its control
group and of all its ancestors, in version 1 (`cpu.cfs_quota_us` by `cpu.cfs_period_us`) and version 2 (`cpu.max`) of
cgroups, rounded up, since threads on a part of a core still use that part; and, for a default alone, the variable
`OMP_NUM_THREADS`. More threads than cores wait for each other at every operation.

Not considered: shares and weights (`cpu.shares`, `cpu.weight`), which bound nothing while other groups are idle, and
groups above the root of a container's namespace, which cannot be seen.

Source: Linux Documentation/scheduler/sched-bwc.rst and admin-guide/cgroup-v2.rst; OpenMP 5.2, section 21.2.1.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from .available import find_cgroups

logger = logging.getLogger(__name__)

VARIABLE = "OMP_NUM_THREADS"


def count_usable_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may use at once, at least 1.

    Args:
        root: the folder below which `proc` and the cgroup mounts lie; tests give another one than "/".
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder, version in find_cgroups(root, "cpu"):
        quota = _read_quota(folder, version)
        if quota is not None and quota < cores:
            logger.debug("%s leaves %d cores, fewer than %d", folder, quota, cores)
            cores = quota
    return cores


def count_default_threads(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of threads where nobody asks for one: a thread a core, or fewer by `OMP_NUM_THREADS`."""
    cores = count_usable_cores(root)
    # With nested parallelism the variable is a list, whose first number is that of the outermost level.
    wanted = environment.get(VARIABLE, "").split(",")[0].strip()
    return min(cores, int(wanted)) if wanted.isascii() and wanted.isdigit() and int(wanted) else cores


def _read_quota(folder: Path, version: int) -> int | None:
    """Return how many cores the quota of one group is, rounded up, or None where it has none."""
    try:
        if version == 1:
            fields = [(folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        else:
            fields = (folder / "cpu.max").read_text().split()
        quota, period = map(int, fields)
    except (OSError, ValueError):  # no such controller here, or "max"
        return None
    return max(1, -(-quota // period)) if quota > 0 and period > 0 else None
