"""What the executor costs per operation: a step of a deep network on the backend that computes nothing.

Run: .venv/bin/python benchmarks/executor_overhead.py [MODEL]
"""

import argparse
import statistics
import sys

import numpy as np
import tqdm

import bathyal as bt
from bathyal.models.registry import build_model

SHAPE = (1, 3, 64, 64)
STEPS = 21


def main() -> int:
    asked = argparse.ArgumentParser(description="What the executor costs per operation.")
    asked.add_argument("model", nargs="?", default="resnet152")
    name = asked.parse_args().model
    feeds = (np.zeros(SHAPE, np.float32), np.zeros(1, np.int64))
    with bt.Trainer(build_model(name), SHAPE, backend="null", costs="analytic", memory="4 GiB") as trainer:
        trainer.train_step(*feeds)
        seconds = [trainer.train_step(*feeds).seconds for _ in tqdm.trange(STEPS, leave=False, disable=None)]
        steps = len(trainer.plan.steps)
    print(
        f"{name}: {steps} operations a step, {1e6 * statistics.median(seconds) / steps:.2f} µs each (median of {STEPS})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
