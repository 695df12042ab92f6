"""How far the arena lies above the live peak, for every bundled network, strategy and budget, the worst first.

Run: .venv/bin/python benchmarks/placement.py [--models resnet18,vgg16] [--rows 20]

Planned on the backend `null` at batch 8 (1 for the deepest two), within the state and shares of what the forward pass
holds at its end, as `benchmarks/planning.py` does. Strategies that move tensors have a link of 1.5 GB/s; their arena is
the budget, and what is above the live peak are holes between what stays for a later use.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

from tqdm import tqdm

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.layers import SGD, forward_graph, training_graph
from bathyal.memory.errors import BudgetError
from bathyal.models.registry import MODELS, build_model
from bathyal.scheduler.blocks.model import count_background_bytes, model_chain
from bathyal.scheduler.layout.kernels import Kernels, choose_least_workspace
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.link import Link
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import StrategyPlanner
from bathyal.scheduler.strategies.names import find_link_use
from bathyal.scheduler.strategies.strategy import LinkUse

SHARES = (0.5, 0.25, 0.15, 0.1, 0.05)
STRATEGIES = ("keep", "liveness", "chain", "sequential", "revolve", "offload", "superneurons", "stream")
LINK = Link(1.5e9, 1.5e9)
BATCHES = {"resnet1001": 1, "resnet2500": 1}
TARGET = 1.02


def main() -> int:
    asked = argparse.ArgumentParser(description="How far the arena lies above the live peak.")
    asked.add_argument("--models", default=",".join(MODELS), help="names with commas between")
    asked.add_argument("--rows", type=int, default=20, help="how many of the worst are printed")
    options = asked.parse_args()
    rows = []
    for name in tqdm(options.models.split(","), leave=False, disable=None):
        for strategy in STRATEGIES:
            rows += list(overheads(name, strategy))
    rows.sort(reverse=True)
    print(f"{'arena / live peak':<20}{'network':<16}{'strategy':<12}{'share':>6}")
    for ratio, network, strategy, share in rows[: options.rows]:
        print(f"{ratio:<20.4f}{network:<16}{strategy:<12}{share:>6}")
    print(f"{sum(ratio > TARGET for ratio, *_ in rows)} of {len(rows)} plans above {TARGET}")
    return 0


def overheads(name: str, strategy: str) -> Iterator[tuple[float, str, str, float]]:
    """Arena by live peak of each share that has a plan."""
    problem, held = problem_of(name)
    if find_link_use(strategy) is LinkUse.REQUIRED:
        problem = replace(problem, costs=replace(problem.costs, link=LINK))
    planner = StrategyPlanner(problem, strategy)
    for share in SHARES:
        try:
            plan = planner.plan(problem.state.nbytes + int(share * held))
        except BudgetError:
            continue
        yield plan.peak_bytes / plan.live_peak_bytes, name, strategy, share


def problem_of(name: str) -> tuple[Problem, int]:
    """A bundled network, and the bytes that its forward pass holds at its end, beside the state."""
    entry, backend = MODELS[name], NullBackend()
    shape = (BATCHES.get(name, 8), entry.channels, entry.image_side, entry.image_side)
    graph = lower(training_graph(forward_graph(build_model(name), shape), SGD(0.1, momentum=0.9)), backend)
    costs = estimate(graph, backend)
    chain = model_chain(graph, costs, [choose_least_workspace(costs, Kernels.FIXED)], search=False).chain
    held = count_background_bytes(graph) - graph.state_bytes + chain.blocks[0].input_bytes
    held += sum(block.options[0].saved_bytes for block in chain.blocks)
    return Problem(graph, costs, Kernels.FIXED, lay_out_state(graph)), held


if __name__ == "__main__":
    sys.exit(main())
