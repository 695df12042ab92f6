"""The smallest budget with a disk, for every bundled network, by the operands of its largest single operation.

Run: .venv/bin/python benchmarks/smallest.py [--quick] [--batch N] [MODEL ...]

No plan can do with less than what the largest operation reads and makes, less what it may write over what it reads.
Beside that lie only the small tensors of the state and small activations, which do not move. The first ratio is to all
that the operation reads and makes, the second to what it needs where it works in place. Networks are planned on the
backend `null`, with costs by arithmetic.
"""

import argparse
import sys
import time

from bathyal.engine.session import Mode, problem_without_memory
from bathyal.engine.settings import Settings
from bathyal.layers import SGD
from bathyal.layers.graph import Graph, Op
from bathyal.layers.kinds import KINDS
from bathyal.models.registry import MODELS, build_model
from bathyal.scheduler.layout.lifetimes import aligned_size
from bathyal.scheduler.planner import StrategyPlanner

MIB = 2**20


def operands(graph: Graph, op: Op) -> int:
    """The bytes that an operation reads and makes."""
    return sum(aligned_size(graph.tensors[t]) for t in {*op.inputs, *op.outputs})


def inplace_bytes(graph: Graph, op: Op) -> int:
    """The most bytes that an operation may write over one of its inputs."""
    pairs = [p for p in KINDS[op.kind].inplace if p[0] < len(op.outputs) and p[1] < len(op.inputs)]
    sizes = [(graph.tensors[op.outputs[a]].nbytes, graph.tensors[op.inputs[b]].nbytes) for a, b in pairs]
    return max((made for made, read in sizes if made == read), default=0)


def main() -> int:
    asked = argparse.ArgumentParser(description="The smallest budget with a disk.")
    asked.add_argument("models", nargs="*", default=list(MODELS))
    asked.add_argument("--batch", type=int, default=8)
    asked.add_argument("--quick", action="store_true", help="one network: does it run?")
    options = asked.parse_args()
    names = ["resnet18"] if options.quick else options.models
    print(f"{'network':<13}{'state MiB':>11}{'largest operation':>19}{'smallest budget':>17}", end="")
    print(f"{'ratio':>8}{'in place':>10}{'seconds':>9}")
    for name in names:
        entry = MODELS[name]
        shape = (options.batch, entry.channels, entry.image_side, entry.image_side)
        settings = Settings(
            shape, SGD(0.1, momentum=0.9), strategy="stream", backend="null", costs="analytic", link="1 GB"
        )
        problem, _ = problem_without_memory(build_model(name), settings, Mode.TRAINING)
        graph = problem.graph
        largest = max(operands(graph, op) for op in graph.ops)
        in_place = max(operands(graph, op) - inplace_bytes(graph, op) for op in graph.ops)
        begin = time.perf_counter()
        least = StrategyPlanner(problem, "stream").least_bytes
        print(
            f"{name:<13}{graph.state_bytes / MIB:>11.1f}{largest / MIB:>19.1f}{least / MIB:>17.1f}"
            f"{least / largest:>8.3f}{least / in_place:>10.3f}{time.perf_counter() - begin:>9.2f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
