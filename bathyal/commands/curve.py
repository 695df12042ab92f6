"""`bathyal curve`: what a step takes at budgets from the least to no limit, strategy by strategy."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from ..engine.planning.alone import make_problem_without_memory
from ..engine.session import open_session
from ..memory.arguments import Whole
from ..memory.sizes import format_size
from ..options.arguments import parse_file_name
from ..options.network import NetworkSetup, add_network_arguments, choose_network
from ..pictures import curve as curve_picture
from ..pictures import picture
from ..reports.plan import describe_network
from ..scheduler.curve import Point, trace_curve
from ..scheduler.layout.problem import Problem
from ..scheduler.strategies.names import parse_strategy
from ..scheduler.strategies.registry import require_link

SUMMARY = "what a step takes at budgets from the least to no limit, by strategy"
STRATEGIES = "liveness,chain,sequential,revolve"
WITH_LINK = STRATEGIES + ",offload,superneurons,stream"
BUDGETS, MOST_BUDGETS = 10, 10_000


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what the command takes; budgets and strategies are its own, and no tensor moves."""
    add_network_arguments(command, leave_out=("memory", "strategy", "spill_dir", "spill_size"))
    command.add_argument(
        "--strategies",
        default=None,
        metavar="NAME,NAME",
        help=f"which are compared (default: {STRATEGIES}; with --link offload, superneurons and stream too)",
    )
    command.add_argument("--points", type=int, default=BUDGETS, help=f"budgets a strategy (default: {BUDGETS})")
    command.add_argument(
        "--plot", type=parse_file_name, default=None, metavar="FILE", help="draw the curves (.png, .svg, .pdf)"
    )


def run(options: argparse.Namespace) -> int:
    """Plan, and print a table or an object a point."""
    Whole(2, MOST_BUDGETS).read("--points", "", options.points)
    asked = options.strategies if options.strategies is not None else (WITH_LINK if options.link else STRATEGIES)
    strategies = list(dict.fromkeys(parse_strategy(name.strip()) for name in asked.split(",")))
    if options.plot is not None:
        picture.require_drawing(options.plot)
    setup = choose_network(options)
    problem = _make_problem(setup)
    for strategy in strategies:
        require_link(problem, strategy)
    seconds = sum(problem.costs.fastest_seconds(op.id) for op in problem.graph.ops)
    if not options.json:
        print(describe_network(setup, problem.graph))
        print(
            f"{'strategy':<14}{'budget':>12}{'peak':>12}{'seconds':>11}{'ratio':>8}{'over bound':>12}{'repeated':>10}"
        )
    points = []
    total = len(strategies) * options.points
    with tqdm(total=total, unit="plan", leave=False, disable=not sys.stderr.isatty()) as bar:
        for point in trace_curve(problem, list(map(str, strategies)), options.points):
            points.append(point)
            text = json.dumps(_summarize(point, seconds)) if options.json else _format_row(point, seconds)
            bar.clear()
            print(text, flush=True)
            bar.update()
    if options.plot is not None:
        graph = problem.graph
        shape = "×".join(map(str, setup.settings.input_shape))
        picture.write(curve_picture.draw(f"{graph.name}, batch {shape}", points, seconds), options.plot)
    return 0


def _make_problem(setup: NetworkSetup) -> Problem:
    """Say what there is to plan: by arithmetic without memory, or with kernels measured in what is free."""
    if not setup.settings.measures_costs:
        return make_problem_without_memory(setup.network, setup.settings)[0]
    with open_session(setup.network, setup.settings, progress=sys.stderr.isatty()) as session:
        return session.problem


def _summarize(point: Point, seconds: float) -> dict[str, Any]:
    return {**asdict(point), "ratio": point.predicted_seconds / seconds if seconds else None}


def _format_row(point: Point, seconds: float) -> str:
    ratio = point.predicted_seconds / seconds if seconds else 1.0
    bound = point.lower_bound_seconds
    over = f"{100 * (point.predicted_seconds / bound - 1):.1f} %" if bound else "none"
    return (
        f"{point.strategy:<14}{format_size(point.budget_bytes):>12}{format_size(point.peak_bytes):>12}"
        f"{point.predicted_seconds:>11.4g}{ratio:>8.3f}{over:>12}{point.recomputed_ops:>10}"
    )
