"""`bathyal plan`: how a network would be trained within a budget."""

from __future__ import annotations

import argparse
import json
import sys

from ..engine.planning.alone import plan_alone, plan_without_memory
from ..engine.planning.budget import Budget, BudgetChoice
from ..engine.programs import Mode, Planned, make_mode_graph
from ..memory.errors import BudgetError
from ..memory.process.process_memory import private_bytes
from ..memory.sizes import format_size
from ..options.arguments import parse_file_name
from ..options.network import NetworkSetup, add_network_arguments, choose_network
from ..pictures import picture
from ..pictures import plan as plan_picture
from ..reports.plan import describe_network, summarize_plan

SUMMARY = "say how a network would be trained within a budget, without training it"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_network_arguments(command)
    command.add_argument(
        "--save-plan",
        type=parse_file_name,
        default=None,
        metavar="FILE",
        help="write the plan for `bathyal train --plan`",
    )
    command.add_argument(
        "--plot",
        type=parse_file_name,
        default=None,
        metavar="FILE",
        help="draw the step's bytes over its seconds (.png, .svg, .pdf)",
    )


def run(options: argparse.Namespace) -> int:
    """Print the plan; status 1 when there is none within the budget."""
    if options.plot is not None:
        picture.require_drawing(options.plot)
    setup = choose_network(options)
    settings = setup.settings
    here = private_bytes()
    backend = settings.make_backend()
    choice = BudgetChoice(setup.network, settings, backend)
    need = choice.estimate_need()
    if settings.memory is None:
        chosen = choice.choose(None)
    else:
        chosen = Budget(settings.memory, False, need, backend.machine.free_bytes())
    budget = chosen.nbytes
    try:
        with chosen.explain_refusals():
            planned = _make_plan(setup, budget)
    except BudgetError as error:
        if not error.least_bytes or not options.json:
            raise
        graph = make_mode_graph(setup.network, settings, Mode.TRAINING, settings.input_shape[0])
        document = {"strategy": str(settings.strategy), "feasible": False, "budget_bytes": budget}
        document |= {"min_budget_bytes": error.least_bytes, "layers": graph.layers, "parameters": graph.parameters}
        print(json.dumps({**document, "ops": len(graph.ops), "message": str(error)}))
        return 1
    if options.save_plan is not None:
        planned.save(options.save_plan)
    if options.plot is not None:
        picture.write(plan_picture.draw(planned), options.plot)
    if options.json:
        print(json.dumps({**summarize_plan(planned), "process_bytes": here, "process_need_bytes": need.nbytes}))
    else:
        print(describe_network(setup, planned.graph))
        print(planned.explain())
        print(f"{need.describe()}" + ("" if here is None else f", beside {format_size(here)} of the interpreter"))
    return 0


def _make_plan(setup: NetworkSetup, budget_bytes: int) -> Planned:
    if not setup.settings.measures_costs:
        return plan_without_memory(setup.network, setup.settings, budget_bytes)
    return plan_alone(setup.network, setup.settings, budget_bytes, progress=sys.stderr.isatty())
