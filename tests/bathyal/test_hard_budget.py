"""The budget under a limit that the kernel enforces: the arena is all that a step takes beside the interpreter."""

import json

from tests.support.memory_limit import memory_cgroup, peak_bytes, run_inside

MIB = 2**20
INTERPRETER = 150 * MIB
NETWORK = ["resnet18", "--image", "112", "--batch", "48", "--classes", "10", "--threads", "1", "--costs", "analytic"]
FIXED = [*NETWORK, "--kernels", "fixed", "--json"]


def run(limit, *arguments):
    with memory_cgroup(limit) as group:
        done = run_inside(group, ["-m", "bathyal", *arguments])
        return done, peak_bytes(group)


def test_a_step_fits_the_budget_and_the_interpreter():
    plan, _ = run(1024 * MIB, "plan", *FIXED, "--device", "null", "--memory", "8 GiB", "--strategy", "keep")
    keep_bytes = json.loads(plan.stdout)["peak_bytes"]
    budget = 240 * MIB
    done, used = run(budget + INTERPRETER, "train", *FIXED, "--memory", str(budget), "--steps", "2")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["arena_high_water_bytes"] == summary["peak_bytes"] <= budget
    assert keep_bytes > 2 * (budget + INTERPRETER), "the same step does not fit when every tensor is kept"
    assert used <= budget + INTERPRETER


def test_a_budget_beyond_the_limit_is_refused_and_not_killed():
    done, _ = run(300 * MIB, "train", *FIXED, "--memory", "500 MiB", "--steps", "1")
    assert done.returncode == 1
    assert "free" in done.stderr


def test_without_a_budget_the_limit_is_looked_at():
    done, _ = run(900 * MIB, "train", *FIXED, "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["budget_bytes"] < 900 * MIB
