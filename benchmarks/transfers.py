"""Strategies that move tensors to a disk beside `chain`, at the same budgets: seconds, bytes moved, how much is hidden.

Run: .venv/bin/python benchmarks/transfers.py [--quick] [--steps N] [--threads N] [--share S] [--spill-dir FOLDER]
     [MODEL@BATCH ...]

The budget is the state and a share of what the network's own order needs beside it. All strategies of a network are
open at once and take their steps in turn, so that whatever else the machine does falls on all alike; kernels and disk
are measured anew. For each: the arena, seconds of a step as measured (median) and by those predicted, seconds by those
of `chain`, what leaves and comes back, seconds that the computation waited, and the share of the transfers' own time
that was hidden behind it.
"""

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack

import numpy as np
from tqdm import trange

import bathyal as bt
from bathyal.engine.session import Mode, problem_without_memory
from bathyal.engine.settings import Settings
from bathyal.memory.errors import BudgetError
from bathyal.models.registry import build_model
from bathyal.scheduler.planner import StrategyPlanner

CASES = ("resnet50@8", "resnet50@16", "vgg16@8", "vgg16@16")
STRATEGIES = ("chain", "offload", "superneurons", "stream")
MIB = 2**20


def main() -> int:
    asked = argparse.ArgumentParser(description="Strategies that move tensors beside `chain`.")
    asked.add_argument("cases", nargs="*", default=list(CASES))
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--steps", type=int, default=5)
    asked.add_argument("--share", type=float, default=0.5)
    asked.add_argument("--spill-dir", default=None)
    asked.add_argument("--quick", action="store_true", help="ResNet-18, 64² images, 2 steps: does it run?")
    options = asked.parse_args()
    print(f"{'network':<12}{'strategy':<14}{'MiB':>8}{'seconds':>9}{'by predicted':>14}{'by chain':>10}", end="")
    print(f"{'MiB out':>9}{'MiB in':>8}{'waited':>8}{'hidden':>8}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for case in ["resnet18@2"] if options.quick else options.cases:
            measure(case, options)
    return 0


def measure(case: str, options: argparse.Namespace) -> None:
    """Run one network with all strategies and print them."""
    model, batch = case.split("@")
    shape = (int(batch), 3, *((64, 64) if options.quick else (224, 224)))
    steps = 2 if options.quick else options.steps
    optimizer = bt.SGD(0.01, momentum=0.9)
    problem, _ = problem_without_memory(build_model(model), Settings(shape, optimizer), Mode.TRAINING)
    state, whole = problem.state.nbytes, StrategyPlanner(problem, "liveness").least_bytes
    memory = state + int(options.share * (whole - state))
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=shape).astype(np.float32), rng.integers(0, 1000, shape[0])
    with ExitStack() as stack:
        trainers: dict[str, bt.Trainer] = {}
        for strategy in STRATEGIES:
            trainer = bt.Trainer(
                build_model(model),
                shape,
                optimizer=optimizer,
                memory=memory,
                strategy=strategy,
                threads=options.threads,
                spill_dir=options.spill_dir,
            )
            stack.enter_context(trainer)
            try:
                _ = trainer.plan
            except BudgetError as error:
                print(
                    f"{case:<12}{strategy:<14}{memory / MIB:>8.0f}  needs {error.least_bytes / MIB:.0f} MiB", flush=True
                )
                continue
            trainers[strategy] = trainer
        results: dict[str, list[bt.StepResult]] = {name: [] for name in trainers}
        for turn in trange(steps + 1, leave=False, disable=None):
            for name, trainer in trainers.items():
                result = trainer.train_step(images, labels)
                if turn:
                    results[name].append(result)
        chain = statistics.median(r.seconds for r in results["chain"]) if "chain" in results else None
        for name, trainer in trainers.items():
            plan, found = trainer.plan, statistics.median(r.seconds for r in results[name])
            waited = statistics.median(r.waited_seconds for r in results[name])
            moving = statistics.median(r.moving_seconds for r in results[name])
            hidden = f"{max(1 - waited / moving, 0):.0%}" if moving else ""
            by_chain = "" if chain is None else f"{found / chain:.3f}"
            print(
                f"{case:<12}{name:<14}{plan.peak_bytes / MIB:>8.0f}{found:>9.3f}{found / plan.predicted_seconds:>14.3f}"
                f"{by_chain:>10}{plan.offloaded_bytes / MIB:>9.0f}{plan.fetched_bytes / MIB:>8.0f}{waited:>8.3f}"
                f"{hidden:>8}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
