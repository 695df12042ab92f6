"""Bathyal against PyTorch, with and without a limit on memory, and where our step spends its time.

Run: .venv/bin/python benchmarks/peers.py [--quick] [--threads N] [--steps N] [MODEL ...]

First, for each network, seconds a step on both sides without a limit, measured in turn by the code of `bathyal
compare`. Then ResNet-50 with whole processes under limits that the kernel enforces (root and a memory cgroup are
needed). Then for each network the seconds of every kind of operation, from the cost table that the plan was made with,
and the rate of arithmetic of a whole step against what one large matrix product reaches on this machine. Last, what a
budget costs (`budgets.py`), and what the executor costs per operation (`executor_overhead.py`).
"""

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from bathyal.cli import make_parser
from bathyal.commands.compare import open_sides, summarize_side, take_steps
from bathyal.comparison.process import read_libraries
from bathyal.comparison.side import OURS, remove_dropout
from bathyal.engine.programs import Planned
from bathyal.engine.session import open_session
from bathyal.layers.graph import Op
from bathyal.layers.kinds import KINDS
from bathyal.options.network import NetworkSetup, choose_network

MODELS = ("resnet50", "vgg16", "resnet18")
PEERS = ("torch", "torch-contiguous")
TARGETS = {"resnet50": 0.90}
"""Our seconds by those of PyTorch's faster order."""
LIMITED = (
    ("300 MiB", "480 MiB", "torch"),
    ("430 MiB", "600 MiB", "torch"),
    ("900 MiB", "1250 MiB", "torch-checkpoint"),
)
"""ResNet-50, batch 8, 224²: a budget, the limit of each whole process, and the side of PyTorch's."""
LIMITED_TARGETS = {"600 MiB": "<= 1.10 of no limit", "1250 MiB": "<= 0.75 of theirs"}
PRODUCT = 2048
REPETITIONS = 5


def main() -> int:
    asked = argparse.ArgumentParser(description="Bathyal against PyTorch without a limit on memory.")
    asked.add_argument("models", nargs="*", default=MODELS)
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--steps", type=int, default=7)
    asked.add_argument("--quick", action="store_true", help="batch 2, 64² images, 2 steps: does it run?")
    options = asked.parse_args()
    size = ["--batch", "2", "--image", "64"] if options.quick else ["--batch", "8", "--image", "224"]
    steps = 2 if options.quick else options.steps
    peak = product_rate(options.threads)
    print(f"{OURS} against PyTorch, {' '.join(size)}, {options.threads} threads, median of {steps} steps in turn")
    print(f"{'network':<12}{'side':<18}{'s per step':>11}{'ratio':>8}{'target':>8}  first loss differs by")
    seconds, setups = {}, {}
    for model in options.models:
        arguments = ["compare", model, *size, "--threads", str(options.threads), "--steps", str(steps)]
        command = make_parser().parse_args([*arguments, "--against", ",".join(PEERS)])
        setups[model] = choose_network(command)
        seconds[model] = compare(model, command, setups[model], "" if options.quick else "<= {:.2f}")
    if "resnet50" in setups and not options.quick:
        print()
        compare_limited(options, seconds["resnet50"])
    for model, setup in setups.items():
        print()
        by_kind(model, setup, seconds[model], peak)
    folder = Path(__file__).parent
    quick = ["--quick"] if options.quick else []
    threads = ["--threads", str(options.threads)]
    status = 0
    for script, arguments in (("budgets.py", [*quick, *threads]), ("executor_overhead.py", options.models[:1])):
        print(flush=True)
        status |= subprocess.run([sys.executable, str(folder / script), *arguments], check=False).returncode
    return status


def compare(model: str, command: argparse.Namespace, setup: NetworkSetup, target: str) -> float | None:
    """Run and print one network; return our seconds per step."""
    with open_sides([OURS, *PEERS], command, setup.settings) as (opened, conditions):
        take_steps(opened, command.steps, conditions.interleaved)
    rows = [summarize_side(side, opened[0], setup) for side in opened]
    worst = max((r["ratio"] for r in rows[1:] if r["ratio"]), default=None)
    for r in rows:
        if r["seconds_per_step"] is None:
            print(f"{model:<12}{r['side']:<18}{r['message']}")
            continue
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.3f}"
        wanted = target.format(TARGETS[model]) if model in TARGETS and r["ratio"] and r["ratio"] == worst else ""
        differs = "" if r["loss_difference"] is None else f"{r['loss_difference']:.1e}"
        print(f"{model:<12}{r['side']:<18}{r['seconds_per_step']:>11.4f}{ratio:>8}{wanted:>8}  {differs}", flush=True)
    found: float | None = rows[0]["seconds_per_step"]
    return found


def compare_limited(options: argparse.Namespace, free: float | None) -> None:
    """Run ResNet-50 under limits on whole processes and print both sides."""
    print(f"resnet50 {'limit':>13}  {'side':<18}{'s per step':>11}{'peak MiB':>10}{'by no limit':>13}{'ratio':>8}")
    for memory, limit, peer in LIMITED:
        arguments = ["compare", "resnet50", "--batch", "8", "--threads", str(options.threads), "--memory", memory]
        arguments += ["--steps", str(options.steps), "--limit", limit, "--against", peer]
        command = make_parser().parse_args(arguments)
        setup = choose_network(command)
        with open_sides([OURS, peer], command, setup.settings) as (opened, conditions):
            if not conditions.enforced:
                print(f"not enforced: {conditions.reason}")
                return
            read_libraries()
            take_steps(opened, command.steps, conditions.interleaved)
        for r in [summarize_side(side, opened[0], setup) for side in opened]:
            seconds = r["seconds_per_step"]
            if not r["fits"] or seconds is None:
                print(f"{limit:>22}  {r['side']:<18}does not fit: {r['message']}")
                continue
            over = f"{seconds / free:.3f}" if free and r["side"] == OURS else ""
            ratio = "" if r["ratio"] is None else f"{r['ratio']:.3f}"
            target = LIMITED_TARGETS.get(limit, "") if bool(ratio) == (peer == "torch-checkpoint") else ""
            peak = (r["peak_bytes"] or 0) / 2**20
            print(
                f"{limit:>22}  {r['side']:<18}{seconds:>11.4f}{peak:>10.1f}{over:>13}{ratio:>8}  {target}", flush=True
            )


def by_kind(model: str, setup: NetworkSetup, measured: float | None, peak: float) -> None:
    """Print what each kind of operation takes in our plan, and the rate of arithmetic."""
    with open_session(remove_dropout(setup.network), setup.settings, progress=sys.stderr.isatty()) as session:
        planned = session.training
    graph, total = planned.graph, 0.0
    took: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    first = next(op.id for op in graph.ops if op.kind == "conv2d")
    for step in planned.plan.steps:
        op = graph.ops[step.op]
        entry = took[("stem: " if op.forward_op == first else "") + op.kind]
        entry[0] += 1
        entry[1] += planned.costs.kernels[op.id][step.kernel].seconds
        entry[2] += flops(planned, op)
    total = sum(entry[1] for entry in took.values())
    print(f"{model}: {len(planned.plan.steps)} operations a step, {1e3 * total:.1f} ms by the cost table")
    print(f"  {'kind':<34}{'number':>7}{'ms':>9}{'share':>8}{'GFLOP/s':>9}")
    for kind, (number, seconds, work) in sorted(took.items(), key=lambda item: -item[1][1]):
        rate = f"{1e-9 * work / seconds:.1f}" if work and seconds else ""
        print(f"  {kind:<34}{number:>7.0f}{1e3 * seconds:>9.2f}{100 * seconds / (total or 1):>7.1f}%{rate:>9}")
    if measured:
        reached = sum(entry[2] for entry in took.values()) / measured
        print(
            f"  whole step, measured: {1e3 * measured:.1f} ms, {1e-9 * reached:.1f} GFLOP/s = "
            f"{100 * reached / peak:.0f} % of the {1e-9 * peak:.1f} GFLOP/s of a product of {PRODUCT}² matrices"
        )


def flops(planned: Planned, op: Op) -> float:
    """Arithmetic of one operation, from the shapes of its operands."""
    tensors = planned.graph.tensors
    inputs, outputs = ([tensors[t].spec for t in ids] for ids in (op.inputs, op.outputs))
    return KINDS[op.kind].flops(inputs, outputs, op.attrs)


def product_rate(threads: int) -> float:
    """FLOP/s of numpy's float32 product of large matrices, the best of some."""
    a = np.random.default_rng(0).random((PRODUCT, PRODUCT), np.float32)
    b, c = a.T.copy(), np.empty_like(a)
    best = 0.0
    with threadpool_limits(threads):
        for _ in range(REPETITIONS):
            begin = time.perf_counter()
            np.matmul(a, b, out=c)
            best = max(best, 2.0 * PRODUCT**3 / (time.perf_counter() - begin))
    return best


if __name__ == "__main__":
    sys.exit(main())
