"""On every instruction set all that the library computes is compiled for the processor, and right.

The library's verbose output names the implementation of every primitive that runs. Each set needs a process of its own.
`benchmarks/instruction_sets.py` looks at every bundled network.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.onednn_library import onednn_backend

onednn_backend()
INSTRUCTION_SETS = ("SSE41", "AVX", "AVX2", "AVX512_CORE")

RIGHT = """
import numpy as np
import bathyal as bt
from bathyal.engine.backends.onednn import OneDnnBackend
from bathyal.layers import SGD, forward_graph, training_graph
from tests.support.lowered_graphs import check_operations

def block(channels, kernel, **choices):
    return bt.Conv2d(channels, kernel, bias=False, **choices), bt.BatchNorm2d(), bt.ReLU()

NETWORKS = [
    # Images with fewer rows than a kernel, two by two and one by one; a branch that is a convolution, and sums.
    ((3, 3, 9, 9), [*block(16, 7, stride=2, padding=3), bt.MaxPool2d(3, stride=2, padding=1), *block(24, 3, padding=1),
        bt.Residual(bt.Sequential(*block(24, 3, padding=1))), *block(32, 3, stride=2, padding=1),
        bt.Conv2d(24, 3, padding=1), bt.GlobalAvgPool2d()]),
    # A first layer that leaves a plain image; a large kernel, groups, one group a channel, dilation.
    ((2, 3, 35, 35), [bt.Conv2d(16, 11, stride=4, padding=2), bt.ReLU(), bt.MaxPool2d(3, stride=2),
        bt.BatchNorm2d(), *block(32, 5, padding=2, groups=2), *block(32, 3, padding=1, groups=32),
        *block(16, 3, padding=2, dilation=2), bt.AvgPool2d(2), bt.Conv2d(16, 5, padding=2)]),
    ((2, 5, 4, 6), [bt.Conv2d(8, (1, 5)), bt.Conv2d(12, (3, 1), padding=(1, 0)), bt.BatchNorm2d(), bt.ReLU()]),
]
for shape, layers in NETWORKS:
    network = bt.Sequential(*layers, bt.Flatten(), bt.Linear(7))
    graph = training_graph(forward_graph(network, shape), SGD(0.1, momentum=0.9))
    rng = np.random.default_rng(0)
    feeds = {"images": rng.standard_normal(shape).astype(np.float32), "labels": np.arange(shape[0]),
             "scalars": np.array([0.1, 1.0]), "random_key": np.array([1, 2])}
    check_operations(graph, OneDnnBackend(), feeds)
"""

STEP = """
import sys
import numpy as np
import bathyal as bt
from bathyal.models.registry import MODELS, build_model
for name, side in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    shape = (2, MODELS[name].channels, side, side)
    with bt.Trainer(build_model(name, classes=10), shape, optimizer=bt.SGD(1e-3, momentum=0.9), device="onednn",
                    costs="analytic", kernels="fixed", memory="3000 MiB", strategy="liveness") as trainer:
        trainer.train_step(np.zeros(shape, np.float32), np.zeros(2, int))
"""


def run_verbosely(program, instruction_set, *arguments):
    """The (primitive, implementation, problem) of everything that a program runs, those of changes of layout left out.

    These are bound by memory, and code for any processor serves those of small weights.
    """
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instruction_set, "ONEDNN_VERBOSE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**environment, "OMP_WAIT_POLICY": "passive"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(",") for line in done.stdout.splitlines() if line.startswith("onednn_verbose,exec,")]
    assert lines
    return {(f[3], f[4], ",".join(f[5:-1])) for f in lines if f[3] != "reorder"}


def find_slow(ran):
    """What runs by code for any processor. Beside it there is C++ for batch norms in which channels fill no block."""
    return sorted(entry for entry in ran if entry[1].startswith(("ref", "simple")))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_every_operation_is_compiled_and_right(instruction_set):
    assert find_slow(run_verbosely(RIGHT + STEP, instruction_set, "small_resnet", "8")) == []
