"""The estimate of what lies outside the arena, held against the kernel's count of whole processes under limits.

At the default budget of a limit nobody may be killed, and the plan that is made uses nearly all of the arena, so that
the limit is met.
"""

import json
import re

import numpy as np
import pytest

from tests.support.memory_limit import memory_cgroup, peak_bytes, run_inside

MIB = 2**20
RESNET = ["train", "resnet18", "--image", "64", "--batch", "48", "--classes", "10", "--steps", "1", "--threads", "1"]
RESNET += ["--strategy", "chain", "--costs", "analytic", "--json"]


def run(limit_mib, arguments):
    """Return the ended process, the last document that it printed, and its peak by the kernel's count."""
    with memory_cgroup(limit_mib * MIB) as group:
        done = run_inside(group, arguments)
        assert not group.kills(), "killed"
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return done, json.loads(lines[-1]) if lines else {}, peak_bytes(group)


def test_a_budget_that_the_limit_cannot_carry_is_refused_with_the_largest_that_it_can():
    done, _, _ = run(420, ["-m", "bathyal", *RESNET, "--memory", "400 MiB"])
    assert done.returncode == 1
    found = re.search(r"--memory (\d+)", done.stderr)
    assert found is not None, done.stderr
    assert 300 * MIB < int(found[1]) < 390 * MIB


TRAINING_ON_FOLDER = """
import json, sys
import bathyal as bt
from bathyal.engine.data.image_folder import ImageFolder
from bathyal.memory.process.process_memory import private_bytes

source = ImageFolder(sys.argv[1], 224, 32)
net = bt.Sequential(bt.Conv2d(8, 7, stride=4), bt.ReLU(), bt.GlobalAvgPool2d(), bt.Flatten(), bt.Linear(2))
trainer = bt.Trainer(net, (32, 3, 224, 224), strategy="keep", costs="analytic", threads=1)
trainer.expect(source)
before, budget = private_bytes(), trainer._session.budget
for result in trainer.fit(source):
    pass
print(json.dumps({"before": before, "need": budget.need.nbytes, "arena": trainer.arena_bytes, "steps": result.step}))
"""


def test_batches_that_wait_are_in_the_estimate(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(96):
            pixels = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
            pillow.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    done, told, peak = run(400, ["-c", TRAINING_ON_FOLDER, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert told["steps"] == 6
    outside, estimate = peak - told["arena"], told["before"] + told["need"]
    assert outside < estimate + 30 * MIB, "code and pages of files are the rest, which the kernel takes back"
    assert estimate < 1.2 * outside + 16 * MIB
