"""What oneDNN runs in a step of every bundled network on every instruction set, by its verbose output.

Run: .venv/bin/python benchmarks/instruction_sets.py [--sides 32,64] [--sets SSE41,AVX,AVX2,AVX512_CORE] [MODEL ...]

Prints for each network, image side and set the milliseconds that the library took for a step's primitives, and those
that ran by code for any processor (names that begin with "ref" or "simple"); the exit status says whether there were
any. Changes of layout are left out. A set that the processor does not have gives the next that it has.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from bathyal.models.registry import MODELS

SETS = "SSE41,AVX,AVX2,AVX512_CORE"
SLOW = ("ref", "simple")
DEEPEST = ("resnet1001", "resnet2500")
"""They repeat the blocks of resnet50."""
STEP = """
import sys
import numpy as np
import bathyal as bt
from bathyal.models.registry import MODELS, build_model
name, side = sys.argv[1], int(sys.argv[2])
shape = (2, MODELS[name].channels, side, side)
with bt.Trainer(build_model(name, classes=10), shape, optimizer=bt.SGD(1e-3, momentum=0.9), device="onednn",
                costs="analytic", kernels="fixed", memory="3000 MiB", strategy="liveness") as trainer:
    trainer.train_step(np.zeros(shape, np.float32), np.zeros(2, int))
"""


def list_primitives(name: str, side: int, instruction_set: str) -> list[list[str]]:
    """Train a step in a process of its own; return the fields of each primitive but changes of layout."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instruction_set, "ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-c", STEP, name, str(side)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    lines = (line.split(",") for line in done.stdout.splitlines() if line.startswith("onednn_verbose,exec,"))
    return [fields for fields in lines if fields[3] != "reorder"]


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("models", nargs="*", help="bundled networks (default: all but the deepest two)")
    asked.add_argument("--sides", default="32,64", help="of the images, in pixels (default: %(default)s)")
    asked.add_argument("--sets", default=SETS, help="(default: %(default)s)")
    options = asked.parse_args()
    slow_steps = 0
    for name in options.models or [name for name in MODELS if name not in DEEPEST]:
        for side in dict.fromkeys(max(int(side), MODELS[name].smallest_image) for side in options.sides.split(",")):
            for instruction_set in options.sets.split(","):
                ran = list_primitives(name, side, instruction_set)
                slow = [fields for fields in ran if fields[4].startswith(SLOW)]
                slow_steps += bool(slow)
                total = sum(float(fields[-1]) for fields in ran)
                print(f"{name:<14}{side:>4}²  {instruction_set:<12}{total:>10.1f} ms  {len(slow)} slow", flush=True)
                for fields in slow:
                    print("    " + ",".join(fields[3:]))
    sys.exit(bool(slow_steps))


if __name__ == "__main__":
    main()
