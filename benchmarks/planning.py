"""What planning takes, for chains of many blocks and for every bundled network: seconds, memory, the gap to the bound.

Run: .venv/bin/python benchmarks/planning.py [--quick] [--json] [--case resnet2500@0.05 [--floor]]

Chains are those of bottleneck networks. The first gap is to the bound on all plans of the chain's options, the second
to the bound on every plan that moves nothing out, whatever it runs when. Networks are planned whole on the backend
`null` (graph, chain, instances, addresses and verification), at the state and shares of what the forward pass holds at
its end. Each case runs in a process of its own, so that peak memory is its own. `--floor` adds to one case of a network
the gap to the exact program with sizes rounded down, in at least 500 units, which no plan that keeps what it stores
until its use can beat; it takes half a minute.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from tqdm import tqdm

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.layers import SGD, forward_graph, training_graph
from bathyal.memory.errors import BudgetError
from bathyal.models.registry import MODELS, build_model
from bathyal.scheduler.blocks.model import count_background_bytes, model_chain
from bathyal.scheduler.chain.bound import chain_bound_seconds
from bathyal.scheduler.chain.dp import choose_slots
from bathyal.scheduler.chain.least_memory import find_minimum_budget
from bathyal.scheduler.chain.solve import solve
from bathyal.scheduler.chain.types import Chain, ChainBlock, ChainOption
from bathyal.scheduler.layout.kernels import Kernels, choose_least_workspace
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import make_plan

CHAINS = (50, 200, 339, 833, 10_002)
SHARES = (0.5, 0.25, 0.15, 0.1, 0.05)
MIB = 2**20


def main() -> int:
    asked = argparse.ArgumentParser(description="What planning takes.")
    asked.add_argument("--quick", action="store_true", help="one chain and one network: does it run?")
    asked.add_argument("--json", action="store_true", help="print one JSON object per line")
    asked.add_argument(
        "--case", default=None, help="one case alone, as JSON: a network or a number of blocks @ a share"
    )
    asked.add_argument(
        "--floor", action="store_true", help="with --case: the gap to all plans that keep what they store"
    )
    options = asked.parse_args()
    if options.case:
        name, share = options.case.split("@")
        document = (
            chain_case(int(name), float(share)) if name.isdigit() else network_case(name, float(share), options.floor)
        )
        print(json.dumps({**document, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return 0
    names = [str(CHAINS[0]), "resnet18"] if options.quick else [*map(str, CHAINS), *MODELS]
    cases = [f"{name}@{share}" for name in names for share in (SHARES[1:2] if options.quick else SHARES)]
    if not options.json:
        print(f"{'case':<18}{'MiB':>9}{'seconds':>9}{'ratio':>8}{'gap %':>8}{'of all %':>10}", end="")
        print(f"{'placement':>11}{'peak MiB':>10}")
    for case in tqdm(cases, leave=False, disable=None):
        command = [sys.executable, __file__, "--case", case]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{case:<18}failed: {done.stderr.strip().splitlines()[-1]}")
            return 1
        report(case, json.loads(done.stdout), options.json)
    return 0


def report(case: str, row: dict[str, Any], as_json: bool) -> None:
    """Print one case."""
    if as_json:
        print(json.dumps({"case": case, **row}), flush=True)
    elif not row["feasible"]:
        print(f"{case:<18}{row['budget'] / MIB:>9.1f}  needs {row['least'] / MIB:.1f} MiB", flush=True)
    else:
        of_all = "" if row["gap_of_all"] is None else f"{100 * row['gap_of_all']:.2f}"
        placement = "" if row["placement"] is None else f"{row['placement']:.4f}"
        print(
            f"{case:<18}{row['budget'] / MIB:>9.1f}{row['seconds']:>9.2f}{row['ratio']:>8.3f}"
            f"{100 * row['gap']:>8.2f}{of_all:>10}{placement:>11}"
            f"{row['peak_mib']:>10.0f}",
            flush=True,
        )


def bottlenecks(count: int) -> Chain:
    """Four stages as in deep residual networks, most blocks in the third; sizes of one 227² image, in bytes."""
    shares = (6 / 832, 32 / 832, 788 / 832, 6 / 832)
    blocks: list[ChainBlock] = []
    for stage, share in enumerate(shares):
        t = 56 * 56 * 64 * 4 // 2**stage  # the middle tensor of the block
        options = (
            ChainOption(12 * t, 3.0, 6.0, 0, -4 * t),
            ChainOption(10 * t, 3.0, 6.2, 0, -4 * t),
            ChainOption(4 * t, 3.0, 9.0, 2 * t, 2 * t),
        )
        blocks += [ChainBlock(4 * t, 4 * t, 3.0, 2 * t, options)] * max(round(share * count), 1)
    return Chain((*blocks, ChainBlock(4096, 4096, 0.0, 0, (ChainOption(0, 0.0, 0.001, 0, 4096),))))


def chain_case(count: int, share: float) -> dict[str, Any]:
    """Plan a chain, and bound it."""
    chain = bottlenecks(count)
    budget = int(share * sum(b.options[0].saved_bytes for b in chain.blocks))
    begin = time.perf_counter()
    solution = solve(chain, budget)
    seconds = time.perf_counter() - begin
    if solution is None:
        return {"feasible": False, "budget": budget, "least": find_minimum_budget(chain)}
    bound = chain_bound_seconds(chain, budget)
    return {
        "feasible": True,
        "budget": budget,
        "seconds": seconds,
        "ratio": solution.seconds
        / sum(b.options[0].forward_seconds + b.options[0].backward_seconds for b in chain.blocks),
        "gap": solution.seconds / bound - 1,
        "gap_of_all": None,
        "placement": None,
    }


def network_case(name: str, share: float, floor: bool = False) -> dict[str, Any]:
    """Plan a network, from its layers to verified addresses."""
    entry, backend = MODELS[name], NullBackend()
    batch = 1 if name in ("resnet1001", "resnet2500") else 8
    shape = (batch, entry.channels, entry.image_side, entry.image_side)
    graph = lower(training_graph(forward_graph(build_model(name), shape), SGD(0.1, momentum=0.9)), backend)
    costs = estimate(graph, backend)
    problem = Problem(graph, costs, Kernels.FIXED, lay_out_state(graph))
    chain = model_chain(graph, costs, [choose_least_workspace(costs, Kernels.FIXED)]).chain
    held = count_background_bytes(graph) - graph.state_bytes + chain.blocks[0].input_bytes
    held += sum(block.options[0].saved_bytes for block in chain.blocks)
    budget = problem.state.nbytes + int(share * held)
    beside = count_background_bytes(graph)
    del graph, costs, problem  # the collector of garbage would walk over them while time is taken
    begin = time.perf_counter()
    graph = lower(training_graph(forward_graph(build_model(name), shape), SGD(0.1, momentum=0.9)), backend)
    problem = Problem(graph, estimate(graph, backend), Kernels.FIXED, lay_out_state(graph))
    try:
        plan = make_plan(problem, "chain", budget)
    except BudgetError as error:
        return {"feasible": False, "budget": budget, "least": error.least_bytes}
    seconds = time.perf_counter() - begin
    once = sum(problem.costs.fastest_seconds(op.id) for op in graph.ops)
    slots = max(choose_slots(chain), 500)
    lowest = solve(chain, budget - beside, slots, rounding="down") if floor else None
    return {
        **({"gap_of_persistent": plan.predicted_seconds / lowest.seconds - 1} if lowest else {}),
        "feasible": True,
        "budget": budget,
        "seconds": seconds,
        "ratio": plan.predicted_seconds / once,
        "gap": plan.predicted_seconds / plan.chain_bound_seconds - 1,
        "gap_of_all": plan.predicted_seconds / plan.lower_bound_seconds - 1,
        "placement": plan.peak_bytes / plan.live_peak_bytes,
    }


if __name__ == "__main__":
    sys.exit(main())
