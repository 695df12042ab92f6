"""`bathyal depth`: the deepest network of the SuperNeurons paper's family that trains within a limit.

The family is (n1, n2, n3, n4) with n3 varying, depth 3 · (n1 + n2 + n3 + n4) + 2. Bathyal's side looks for the deepest
plan within the arena, the disk and the seconds, and then trains one real step under a limit on the whole process that
the kernel enforces; planned and trained depth are told apart. PyTorch's sides have no plan: each attempt is a real
step.

Seconds are those of the machine as it is: whatever else runs there makes steps longer. Source: Wang et al.,
"SuperNeurons", PPoPP 2018, arXiv 1801.04380, section 4.2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..comparison.deepest import search_deepest
from ..comparison.limited import run_limited
from ..comparison.process import SideProcess, keep_plain, read_libraries
from ..comparison.side import OURS
from ..comparison.torch_step import require_torch
from ..engine.planning.alone import plan_alone
from ..engine.programs import Planned
from ..engine.settings import Settings
from ..memory.errors import BathyalError, BudgetError, ConfigError, one_of
from ..memory.process.limit import memory_limit
from ..memory.sizes import format_size
from ..memory.tiers.spill_folder import check_spill_folder, default_spill_folder
from ..models.resnet import depth
from ..options.deep import add_deep_arguments, build_network, make_training_options
from ..options.limit import read_limit
from ..options.network import choose_network
from ..options.settings import require_computing, write_setting_arguments

SUMMARY = "find the deepest network that trains within a limit on memory"
STARTS = MappingProxyType({OURS: 1600, "torch": 120, "torch-checkpoint": 360})
"""The n3 that is tried first, near what fits 12 GiB at batch 16."""
LEAST_PROCESS_BYTES = 256 * 2**20
PROCESS_SHARE = 12
"""One part in so many of the limit is left to the process itself: graph, plan and bound steps grow with the depth."""
DISK_SHARE = 0.9
"""Of what the disk has free, where the user does not say how much; others need some too."""
ATTEMPTS = 3
"""How often a depth whose real step failed is tried again with a tenth less."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_deep_arguments(command, batch=16, memory=None, limit="12 GiB")
    for name, value in (("n1", 6), ("n2", 32), ("n4", 6)):
        command.add_argument(f"--{name}", type=int, default=value, help=f"blocks of that stage (default: {value})")
    command.add_argument("--start", type=int, default=None, metavar="N3", help="the n3 that is tried first")
    command.add_argument(
        "--within", type=float, default=0.02, help="how near to the limit is near enough (default: 0.02)"
    )
    command.add_argument(
        "--most-seconds", type=float, default=900.0, help="that a step may take, as planned (default: 900)"
    )
    command.add_argument("--plan-only", action="store_true", help="no real step")
    command.add_argument("--side", default=OURS, help=f"one of {', '.join(STARTS)} (default: {OURS})")


def run(options: argparse.Namespace) -> int:
    """Search and report; status 1 where nothing trains."""
    _check(options)
    limit_bytes = read_limit(options)
    if limit_bytes is None:
        raise ConfigError("--limit", "the bytes that a whole process may use", "nothing")
    document = {
        "side": options.side,
        "batch": options.batch,
        "image": options.image,
        "limit_bytes": limit_bytes,
        "n1": options.n1,
        "n2": options.n2,
        "n4": options.n4,
    }
    found = _search_ours(options, limit_bytes) if options.side == OURS else _search_theirs(options, limit_bytes)
    document |= found
    print(json.dumps(document) if options.json else report_search(document), flush=True)
    return 0 if document["trained_depth"] or (options.plan_only and document["planned_depth"]) else 1


def _check(options: argparse.Namespace) -> None:
    one_of("--side", options.side, list(STARTS))
    for name in ("n1", "n2", "n4", "batch", "image", "start"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name}", "a whole number of at least 1", str(value))
    if not options.most_seconds > 0:
        raise ConfigError("--most-seconds", "a number above 0", str(options.most_seconds))
    if not 0 < options.within < 1:
        raise ConfigError("--within", "a number between 0 and 1", str(options.within))
    if options.plan_only and options.side != OURS:
        raise ConfigError("--plan-only", f"--side {OURS}", repr(options.side), "PyTorch has no plan: it has to try.")
    if not options.plan_only:
        require_computing(options)


def _list_blocks(options: argparse.Namespace, n3: int) -> tuple[int, int, int, int]:
    return options.n1, options.n2, n3, options.n4


def _tell(line: str) -> None:
    """Say on standard error what was found so far: an attempt takes minutes."""
    print(line, file=sys.stderr, flush=True)


def _find_disk_bytes(settings: Settings) -> int:
    """Return the most bytes that may lie outside the arena."""
    folder = default_spill_folder() if settings.spill_dir is None else settings.spill_dir
    check_spill_folder(folder)
    disk = os.statvfs(folder)
    # Not what the system keeps for its administrator, though we may run as that.
    found = disk.f_bavail * disk.f_frsize
    return int(found * DISK_SHARE) if settings.spill_size is None else min(found, settings.spill_size)


class _Plans:
    """Plans of the family within memory, disk and seconds."""

    def __init__(self, options: argparse.Namespace, settings: Settings, memory_bytes: int, disk_bytes: int) -> None:
        self.options = options
        self.settings = settings
        self.memory_bytes = memory_bytes
        self.disk_bytes = disk_bytes
        self.best: Planned | None = None
        self.told: list[dict[str, Any]] = []

    def attempt(self, n3: int) -> float | None:
        """Plan a depth and return the share of what is allowed that the plan needs; None where there is no plan."""
        blocks = _list_blocks(self.options, n3)
        line: dict[str, Any] = {"n3": n3, "depth": depth(blocks), "fits": False}
        self.told.append(line)
        share: float | None = None
        try:
            planned = self.plan(n3)
        except BudgetError as error:
            line["message"] = str(error)
            if error.least_bytes:
                share = error.least_bytes / self.memory_bytes
        else:
            plan = planned.plan
            share = max(plan.predicted_seconds / self.options.most_seconds, plan.outside_bytes / self.disk_bytes)
            line |= {
                "fits": share <= 1,
                "predicted_seconds": plan.predicted_seconds,
                "outside_bytes": plan.outside_bytes,
                "min_budget_bytes": plan.min_budget_bytes,
                "planning_seconds": planned.planning_seconds,
            }
            if share <= 1 and (self.best is None or planned.graph.layers > self.best.graph.layers):
                self.best = planned
        _tell("planned " + _describe(line))
        return share

    def plan(self, n3: int) -> Planned:
        """Plan a depth."""
        settings = replace(self.settings, memory=self.memory_bytes, spill_size=self.disk_bytes)
        network = build_network(_list_blocks(self.options, n3))
        return plan_alone(network, settings, self.memory_bytes, progress=sys.stderr.isatty())


def _search_ours(options: argparse.Namespace, limit_bytes: int) -> dict[str, Any]:
    rest = limit_bytes - max(LEAST_PROCESS_BYTES, limit_bytes // PROCESS_SHARE)
    others = options.n1 + options.n2 + options.n4
    start = options.start or STARTS[OURS]
    settings = choose_network(make_training_options(options, _list_blocks(options, start))).settings
    memory_bytes = rest if settings.memory is None else settings.memory
    plans = _Plans(options, settings, memory_bytes, _find_disk_bytes(settings))
    n3 = search_deepest(plans.attempt, start, options.within, others=others)
    document: dict[str, Any] = {
        "memory_bytes": memory_bytes,
        "disk_bytes": plans.disk_bytes,
        "most_seconds": options.most_seconds,
        "planned_n3": n3 or None,
        "planned_depth": depth(_list_blocks(options, n3)) if n3 else None,
        "plans": plans.told,
        "trained_n3": None,
        "trained_depth": None,
        "step": None,
        "trials": [],
    }
    if options.plan_only or plans.best is None:
        return document
    planned: Planned | None = plans.best
    for _ in range(ATTEMPTS):
        planned = planned or plans.plan(n3)
        trial = _train(options, planned, n3, memory_bytes, limit_bytes)
        planned = None
        document["trials"].append(trial)
        _tell("trained " + _describe(trial))
        if trial["fits"]:
            return document | {"trained_n3": n3, "trained_depth": trial["depth"], "step": trial}
        n3 = max(n3 * 9 // 10, 1)
    return document


def _train(
    options: argparse.Namespace, planned: Planned, n3: int, memory_bytes: int, limit_bytes: int
) -> dict[str, Any]:
    """Take one real step by a plan, in a process of its own within the limit, and return what it took."""
    blocks = _list_blocks(options, n3)
    trial: dict[str, Any] = {"n3": n3, "depth": depth(blocks), "fits": False}
    plan = planned.plan
    with tempfile.TemporaryDirectory(prefix="bathyal-depth-") as folder:
        file = Path(folder) / "plan.json"
        planned.save(file)
        arguments = ["resnet2500", "--n", *map(str, blocks), f"--batch={options.batch}", f"--image={options.image}"]
        # The plan has the seconds; inside the limit no kernel need be timed again.
        given = argparse.Namespace(**{**vars(options), "memory": memory_bytes, "costs": "analytic"})
        arguments += [*write_setting_arguments(given), f"--plan={file}", "--steps=1", "--json"]
        begin = time.perf_counter()
        try:
            ended = run_limited(arguments, limit_bytes, read=True)
        except BudgetError as error:
            return trial | {"message": str(error)}
        trial["process_seconds"] = time.perf_counter() - begin
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.status or not ended.documents:
        return trial | {"message": f"ended with status {ended.status}"}
    step = ended.documents[-1]
    told = ("layers", "parameters", "loss", "moved_bytes", "waited_seconds", "hidden_share", "process_peak_bytes")
    return trial | {
        "fits": step["loss"] is not None,
        "seconds": step["seconds_per_step"],
        "predicted_seconds": plan.predicted_seconds,
        "limit_peak_bytes": ended.peak_bytes,
        "outside_bytes": plan.outside_bytes,
        "recomputed_ops": plan.recomputed_ops,
        **{name: step[name] for name in told},
    }


def _search_theirs(options: argparse.Namespace, limit_bytes: int) -> dict[str, Any]:
    require_torch()
    read_libraries()
    trials: list[dict[str, Any]] = []

    def attempt(n3: int) -> float | None:
        blocks = _list_blocks(options, n3)
        training = make_training_options(options, blocks)
        training.memory, training.strategy = None, "auto"
        passed = keep_plain(training)
        with memory_limit(limit_bytes) as limit:
            side = SideProcess(options.side, passed, limit)
            try:
                side.start()
                side.step()
                side.end()
            finally:
                side.kill()
        trial = {"n3": n3, "depth": depth(blocks), "fits": bool(side.fits and side.losses), "message": side.message}
        if trial["fits"]:
            trial |= {"seconds": side.seconds[0], "loss": side.losses[0], "limit_peak_bytes": side.peak_bytes}
        elif side.fits is None:
            raise BathyalError(options.side, "a step, or too little memory", side.message)
        trials.append(trial)
        _tell("trained " + _describe(trial))
        # What the kernel counts at most says little of how much deeper it goes: caches fill what there is.
        return 0.0 if trial["fits"] else None

    n3 = search_deepest(attempt, options.start or STARTS[options.side], options.within)
    step = next((t for t in trials if t["fits"] and t["n3"] == n3), None)
    return {
        "planned_n3": None,
        "planned_depth": None,
        "trained_n3": n3 or None,
        "trained_depth": depth(_list_blocks(options, n3)) if n3 else None,
        "step": step,
        "trials": trials,
    }


def _describe(line: Mapping[str, Any]) -> str:
    """Return an attempt in words."""
    parts = [f"n3 = {line['n3']}, depth {line['depth']}: {'fits' if line['fits'] else 'does not fit'}"]
    if line.get("predicted_seconds") is not None:
        parts.append(f"{line['predicted_seconds']:.4g} s predicted")
    if line.get("seconds") is not None:
        parts.append(f"{line['seconds']:.4g} s measured")
    if line.get("outside_bytes") is not None:
        parts.append(f"{format_size(line['outside_bytes'])} outside")
    if line.get("limit_peak_bytes") is not None:
        parts.append(f"peak {format_size(line['limit_peak_bytes'])}")
    if line.get("message"):
        parts.append(line["message"])
    return ", ".join(parts)


def report_search(document: Mapping[str, Any]) -> str:
    """Return the search for people."""
    side, size = document["side"], f"batch {document['batch']}, {document['image']}² images"
    lines = [f"{side}, {size}, {format_size(document['limit_bytes'])} for the whole process, enforced by the kernel"]
    if side == OURS:
        planned = document["planned_depth"]
        lines.append(f"planned depth   {'none' if planned is None else planned}")
    trained = document["trained_depth"]
    lines.append(f"trained depth   {'none' if trained is None else trained}")
    step = document["step"]
    if step is not None:
        lines.append(f"one real step   {step['seconds']:.4g} s, loss {step['loss']:.4f}")
        if step.get("hidden_share") is not None:
            lines.append(
                f"moved           {format_size(step['moved_bytes'])}, {100 * step['hidden_share']:.1f} % of the "
                f"transfers hidden, {format_size(step['outside_bytes'])} outside"
            )
        if step["limit_peak_bytes"] is not None:
            lines.append(f"kernel's count  {format_size(step['limit_peak_bytes'])}")
    return "\n".join(lines)
