"""`bathyal plan`: how a network would be trained within a budget."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..engine.session import Mode, Planned, Session, mode_graph, plan_without_memory
from ..layers.graph import Graph
from ..memory.errors import BudgetError
from ..memory.sizes import format_size, parse_size
from ..options.network import NetworkChoice, choose
from ..pictures import picture
from ..pictures import plan as plan_picture
from ..scheduler.layout.lifetimes import aligned_size
from ..scheduler.plan.simulate import simulate


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What planning alone takes."""
    command.add_argument(
        "--save-plan", type=file_name, default=None, metavar="FILE", help="write the plan for `bathyal train --plan`"
    )
    command.add_argument(
        "--plot",
        type=file_name,
        default=None,
        metavar="FILE",
        help="draw the step's bytes over its seconds (.png, .svg, .pdf)",
    )


def file_name(text: str) -> Path:
    """A file given on the command line."""
    if not text:
        raise argparse.ArgumentTypeError("expected the name of a file, got an empty text")
    return Path(text)


def run(options: argparse.Namespace) -> int:
    """Print the plan; status 1 when there is none within the budget."""
    if options.plot is not None:
        picture.require(options.plot)
    choice = choose(options)
    given = options.memory
    budget = choice.settings.make_backend().machine.default_budget() if given is None else parse_size(given)
    try:
        planned = _planned(choice, budget)
    except BudgetError as error:
        if not error.least_bytes or not options.json:
            raise
        graph = mode_graph(choice.network, choice.settings, Mode.TRAINING, choice.settings.input_shape[0])
        document = {"strategy": options.strategy, "feasible": False, "budget_bytes": budget}
        document |= {"min_budget_bytes": error.least_bytes, "layers": graph.layers, "parameters": graph.parameters}
        print(json.dumps({**document, "ops": len(graph.ops), "message": str(error)}))
        return 1
    if options.save_plan is not None:
        planned.save(options.save_plan)
    if options.plot is not None:
        picture.write(plan_picture.draw(planned), options.plot)
    if options.json:
        print(json.dumps(summary(planned)))
    else:
        print(describe(choice, planned.graph))
        print(planned.explain())
    return 0


def _planned(choice: NetworkChoice, budget_bytes: int) -> Planned:
    if not choice.settings.measured:
        return plan_without_memory(choice.network, choice.settings, budget_bytes)
    session = Session(choice.network, choice.settings, progress=sys.stderr.isatty())
    try:
        return session.training
    finally:
        session.close()


def describe(choice: NetworkChoice, graph: Graph) -> str:
    """One line on what is planned: a lowered graph."""
    shape = "×".join(str(n) for n in choice.settings.input_shape)
    return (
        f"{graph.name}: {graph.layers} layers, {graph.parameters / 1e6:.2f} M parameters, "
        f"state {format_size(graph.state_bytes)}, batch {shape} {choice.settings.dtype}, "
        f"{len(graph.ops)} operations a step"
    )


def summary(planned: Planned) -> dict[str, Any]:
    """The plan in numbers, for machines."""
    plan, graph = planned.plan, planned.graph
    return {
        "strategy": plan.strategy,
        "note": plan.note,
        "feasible": True,
        "budget_bytes": plan.budget_bytes,
        "min_budget_bytes": plan.min_budget_bytes,
        "peak_bytes": plan.peak_bytes,
        "arena_bytes": plan.peak_bytes,
        "live_peak_bytes": plan.live_peak_bytes,
        "state_bytes": graph.state_bytes,
        "keep_bytes": sum(aligned_size(tensor) for tensor in graph.tensors),
        "predicted_seconds": plan.predicted_seconds,
        "lower_bound_seconds": plan.lower_bound_seconds,
        "lower_bound": "knapsack" if planned.costs.link is None else "knapsack with link",
        "chain_bound_seconds": plan.chain_bound_seconds,
        "recomputed_ops": plan.recomputed_ops,
        "outside_bytes": plan.outside_bytes,
        "offloaded_bytes": plan.offloaded_bytes,
        "fetched_bytes": plan.fetched_bytes,
        "stalled_seconds": simulate(plan, planned.costs).stalled_seconds,
        "ops": len(graph.ops),
        "layers": graph.layers,
        "parameters": graph.parameters,
        "planning_seconds": round(planned.planning_seconds, 6),
    }
