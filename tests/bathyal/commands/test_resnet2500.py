"""`bathyal resnet2500` on a tiny member of the family: what it prints, its limit, its refusals."""

import json
import subprocess
import sys

import pytest

from bathyal.cli import make_parser
from bathyal.models.resnet import RESNET_2500
from bathyal.resnet2500 import main
from tests.support.memory_limit import memory_cgroup

TINY = [
    "--n", "1", "1", "1", "1", "--image", "32", "--batch", "2", "--costs", "analytic", "--link", "1 GB",
    "--threads", "1",
]  # fmt: skip
FIELDS = {
    "layers", "parameters", "budget_bytes", "peak_bytes", "arena_high_water_bytes", "predicted_seconds",
    "seconds_per_step", "moved_bytes", "moving_seconds", "waited_seconds", "hidden_share", "outside_bytes", "losses",
    "weights_sha256", "process_peak_bytes",
}  # fmt: skip


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "bathyal.resnet2500", *TINY, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_defaults_are_the_network_of_the_paper():
    options = make_parser().parse_args(["resnet2500"])
    assert tuple(options.n) == RESNET_2500
    assert (options.batch, options.image, options.steps, options.memory) == (1, 227, 2, "560 MiB")
    assert (options.strategy, options.kernels, options.limit) == ("stream", "fixed", None)


def test_it_trains_inside_a_limit_and_reports():
    with memory_cgroup(400 * 2**20):
        pass  # skips where none can be made
    done = command("--memory", "60 MiB", "--limit", "400 MiB", "--json")
    assert done.returncode == 0, done.stderr
    *steps, document = lines(done.stdout)
    assert document.keys() >= FIELDS | {"limit_bytes", "limit_peak_bytes"}
    assert document["losses"] == [step["loss"] for step in steps]
    assert document["moved_bytes"] == document["offloaded_bytes"] + document["fetched_bytes"] > 0
    assert all(step["moved_bytes"] == document["moved_bytes"] and 0 <= step["hidden_share"] <= 1 for step in steps)
    assert document["arena_high_water_bytes"] == document["peak_bytes"] <= 60 * 2**20
    assert 60 * 2**20 < document["limit_peak_bytes"] <= document["limit_bytes"] == 400 * 2**20
    # The same weights, with all state in the arena.
    again = command("--memory", "200 MiB", "--strategy", "chain", "--json")
    assert again.returncode == 0, again.stderr
    kept = lines(again.stdout)[-1]
    assert (kept["weights_sha256"], kept["moved_bytes"], kept["hidden_share"]) == (document["weights_sha256"], 0, None)


def test_its_report_for_people():
    done = command("--memory", "60 MiB", "--steps", "1")
    assert done.returncode == 0, done.stderr
    for words in ("step 1: loss", "layers", "predicted peak", "measured peak", "hidden", "whole process", "sha256"):
        assert words in done.stdout
    assert done.stderr == ""


def test_a_process_that_the_kernel_ends_is_one_line():
    with memory_cgroup(40 * 2**20):
        pass
    done = command("--memory", "60 MiB", "--limit", "12 MiB")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "--limit: expected a whole process within" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--memory", "1 KiB"], "expected at least"),
        (["--memory", "much"], "expected a positive number of bytes"),
        (["--limit", "much"], "--limit: expected"),
        (["--batch", "0"], "--batch: expected"),
        (["--steps", "0"], "--steps: expected"),
        (["--strategy", "streem"], "Did you mean"),
        (["--n", "1", "1", "0", "1"], "--n: expected"),
        (["--spill-dir", "/nowhere"], "no such folder"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, words, capsys):
    assert main([*TINY, "--memory", "60 MiB", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert words in captured.err
