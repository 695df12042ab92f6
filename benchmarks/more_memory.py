"""More memory is no slower plan: plans of 20 budgets for 100 random networks and every bundled one.

Run: .venv/bin/python benchmarks/more_memory.py [--quick]

Budgets lie evenly from the least to what is used without a limit; links carry 1 GB/s and 100 MB/s. Networks are planned
on the backend `null`. The largest bundled networks have fewer budgets. A rise is a plan that is slower than that of a
smaller budget. The exit status is 1 where there is one.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from tqdm import tqdm

from bathyal.layers import Layer
from bathyal.models.registry import MODELS, build_model
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.link import Link
from bathyal.scheduler.planner import StrategyPlanner
from tests.support.random_networks import random_network, step_problem

RATES = (1e9, 1e8)
STRATEGIES = ("offload", "stream", "auto")
BUDGETS = 20
MANY_OPS = 1000
"""Of a network of more operations only so many budgets are planned: each takes seconds."""
FEW_BUDGETS = 6
MOST_OPS = 4000


def main() -> int:
    asked = argparse.ArgumentParser(description="More memory is no slower plan.")
    asked.add_argument("--quick", action="store_true", help="four random networks and one bundled one: does it run?")
    quick = asked.parse_args().quick
    worst, rises, plans = 0.0, 0, 0
    print("network           ops  strategy  MB/s  plans  rises  worst     s")
    for name, network, shape in itertools.islice(_list_networks(quick), 5 if quick else None):
        problem = step_problem(network, shape)
        if len(problem.graph.ops) > MOST_OPS:
            continue
        for strategy, rate in itertools.product(STRATEGIES, RATES):
            begun = time.process_time()
            found = _find_rises(replace(problem, costs=replace(problem.costs, link=Link(rate, rate))), strategy)
            plans, rises, worst = plans + len(found), rises + sum(r > 0 for r in found), max([worst, *found])
            if not name.startswith("random") or any(found):
                print(
                    f"{name:16}{len(problem.graph.ops):5}  {strategy:8}{rate / 1e6:6.0f}{len(found):7}"
                    f"{sum(r > 0 for r in found):7}{100 * max(found):6.2f}%{time.process_time() - begun:6.0f}",
                    flush=True,
                )
    print(f"{plans} plans, {rises} rises, the worst {100 * worst:.2f} %")
    return 1 if rises else 0


def _list_networks(quick: bool) -> Iterator[tuple[str, Layer, tuple[int, ...]]]:
    for seed in tqdm(range(4 if quick else 100), desc="random networks", disable=None):
        yield f"random {seed}", random_network(seed), (3, 3, 8, 8)
    for name, entry in MODELS.items():
        yield name, build_model(name), (4, entry.channels, entry.image_side, entry.image_side)


def _find_rises(problem: Problem, strategy: str) -> list[float]:
    """For each budget by what part its plan is slower than the fastest of the smaller ones."""
    planner = StrategyPlanner(problem, strategy)
    least = planner.least_bytes
    most = max(planner.plan(2**62).peak_bytes, least)
    count = BUDGETS if len(problem.graph.ops) <= MANY_OPS else FEW_BUDGETS
    fastest, rises = float("inf"), []
    for number in range(count):
        seconds = planner.plan(least + (most - least) * number // (count - 1)).predicted_seconds
        rises.append(seconds / fastest - 1 if seconds > fastest * (1 + 1e-9) else 0.0)
        fastest = min(fastest, seconds)
    return rises


if __name__ == "__main__":
    sys.exit(main())
