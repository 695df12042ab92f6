"""What a budget costs: seconds a step at the state and a share of the activations, by those of our step with no limit.

Run: .venv/bin/python benchmarks/budgets.py [--quick] [--threads N] [--steps N] [--strategy NAME] [--rate GB/S]
     [MODEL ...]

The share is of the bytes that the forward pass holds at its end when nothing is fused, padded or computed again. All
budgets of a network are open at once and take their steps in turn, so that whatever else the machine does falls on all
alike; the seconds of kernels are measured anew. With `--rate`, tensors may leave for a disk (`--spill-dir`) whose
transfers are held up to so many GB (10⁹ bytes) a second in each direction; the disk must be faster. Printed for each
budget are its seconds by those with no limit, as predicted and as measured (medians); measured by predicted seconds;
predicted seconds by the certified bound; the arena by the bytes that live in it at the worst moment; and what leaves in
a step.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import trange

import bathyal as bt
from bathyal.memory.tiers.disk import DiskTier
from bathyal.memory.tiers.spill_folder import default_spill_folder
from bathyal.models.registry import build_model

TARGETS = {
    "resnet50": (644.7, {0.5: 1.09, 0.25: 1.26}),
    "resnet152": (1342.9, {0.15: 1.30, 0.1: None}),
}
"""For a network of batch 8 and 224² images: MiB that the forward pass holds, and the ratio to reach for each share."""
WITH_LINK = {
    ("resnet50", 0.6): {0.25: 1.10, 0.1: None},
    ("resnet50", 1.5): {0.25: 1.05, 0.1: None},
    ("resnet152", 0.6): {0.15: 1.10, 0.1: 1.15},
    ("resnet152", 1.5): {0.15: 1.10, 0.1: 1.15},
}
"""The same for a network and the rate of a link."""
QUICK_SURPLUS = 4
"""Of small images so much more than their share is given: beside them the largest operations need relatively more."""
MIB = 2**20


class SlowDisk(DiskTier):
    """A disk that is no faster than a rate in each direction, in bytes per second."""

    def __init__(self, folder: Path, nbytes: int, rate: float) -> None:
        super().__init__(folder, nbytes)
        self._rate = rate

    def write(self, address: int, source: npt.NDArray[np.uint8]) -> None:
        """Copy, and return no earlier than that rate allows."""
        end = time.monotonic() + source.nbytes / self._rate
        super().write(address, source)
        time.sleep(max(end - time.monotonic(), 0))

    def read(self, address: int, target: npt.NDArray[np.uint8]) -> None:
        """Copy, and return no earlier than that rate allows."""
        end = time.monotonic() + target.nbytes / self._rate
        super().read(address, target)
        time.sleep(max(end - time.monotonic(), 0))


def main() -> int:
    asked = argparse.ArgumentParser(description="What a budget costs.")
    asked.add_argument("models", nargs="*", default=list(TARGETS))
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--steps", type=int, default=9)
    asked.add_argument("--strategy", default="auto")
    asked.add_argument(
        "--rate", type=float, choices=[0.6, 1.5], default=None, help="GB/s of a link to move tensors over"
    )
    asked.add_argument("--spill-dir", default=None)
    asked.add_argument("--quick", action="store_true", help="batch 2, 64² images, 2 steps: does it run?")
    options = asked.parse_args()
    print(f"{'network':<11}{'budget':>14}{'MiB':>8}{'predicted':>11}{'measured':>10}{'target':>9}", end="")
    print(f"{'seconds':>10}{'by predicted':>14}{'bound':>8}{'placement':>11}{'MiB out':>9}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for model in options.models:
            measure(model, options)
    return 0


def measure(model: str, options: argparse.Namespace) -> None:
    """Run one network at all its budgets and print them."""
    held, shares = TARGETS[model]
    moves: dict[str, Any] = {}
    if options.rate is not None:
        shares = WITH_LINK[model, options.rate]
        folder = default_spill_folder() if options.spill_dir is None else Path(options.spill_dir)
        rate = options.rate * 1e9
        moves = {"link": f"{options.rate} GB", "make_tier": lambda nbytes: SlowDisk(folder, nbytes, rate)}
    shape = (2, 3, 64, 64) if options.quick else (8, 3, 224, 224)
    held *= MIB * (np.prod(shape) / (8 * 3 * 224 * 224) * QUICK_SURPLUS if options.quick else 1)
    steps = 2 if options.quick else options.steps
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=shape).astype(np.float32), rng.integers(0, 1000, shape[0])
    with ExitStack() as stack:

        def open_trainer(memory: int) -> bt.Trainer:
            return stack.enter_context(
                bt.Trainer(
                    build_model(model),
                    shape,
                    optimizer=bt.SGD(0.01, momentum=0.9),
                    memory=memory,
                    strategy=options.strategy,
                    threads=options.threads,
                    **moves,
                )
            )

        free = open_trainer(int(6 * held) + 2**30)
        state = free.planned.graph.state_bytes
        trainers = {"no limit": free} | {f"state + {s:.0%}": open_trainer(state + int(s * held)) for s in shares}
        seconds: dict[str, list[float]] = {name: [] for name in trainers}
        for turn in trange(steps + 1, leave=False, disable=None):
            for name, trainer in trainers.items():
                took = trainer.train_step(images, labels).seconds
                if turn:
                    seconds[name].append(took)
        wanted = dict(zip(trainers, (None, *shares.values()), strict=True))
        for name, trainer in trainers.items():
            plan, found = trainer.plan, statistics.median(seconds[name])
            ratio = found / statistics.median(seconds["no limit"])
            predicted = plan.predicted_seconds / free.plan.predicted_seconds
            target = "" if wanted[name] is None else f"<= {wanted[name]:.2f}"
            memory = plan.peak_bytes if trainer is free else plan.budget_bytes
            print(
                f"{model:<11}{name:>14}{memory / MIB:>8.1f}{predicted:>11.3f}{ratio:>10.3f}{target:>9}{found:>10.4f}"
                f"{found / plan.predicted_seconds:>14.3f}{plan.predicted_seconds / plan.lower_bound_seconds:>8.3f}"
                f"{plan.peak_bytes / plan.live_peak_bytes:>11.4f}{plan.offloaded_bytes / MIB:>9.0f}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
