"""`bathyal depth` on tiny members of the family: planned and trained depth, its JSON, its refusals."""

import json
import os
import signal
import subprocess
import sys

import pytest

from bathyal.cli import make_parser
from bathyal.commands import depth
from bathyal.comparison.limited import LimitedEnd, hand_on_signals
from bathyal.depth import main
from tests.support.memory_limit import memory_cgroup

TINY = [
    "--n1", "1", "--n2", "1", "--n4", "1", "--image", "32", "--batch", "2", "--start", "2", "--limit", "400 MiB",
    "--costs", "analytic", "--link", "1 GB", "--threads", "1", "--strategy", "stream:lru", "--within", "0.3",
]  # fmt: skip
FIELDS = {
    "side", "batch", "image", "n1", "n2", "n4", "limit_bytes", "planned_n3", "planned_depth", "trained_n3",
    "trained_depth", "step", "trials",
}  # fmt: skip


def searched(capsys, *arguments):
    status = main([*TINY, *arguments, "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    return status, json.loads(line)


def test_the_defaults_are_the_experiment_of_the_paper():
    options = make_parser().parse_args(["depth"])
    assert (options.n1, options.n2, options.n4, options.batch, options.image) == (6, 32, 6, 16, 227)
    assert (options.limit, options.most_seconds, options.side) == ("12 GiB", 900.0, "bathyal")


def test_the_deepest_plan_stays_within_disk_and_seconds(capsys):
    status, document = searched(capsys, "--plan-only", "--memory", "40 MiB", "--spill-size", "120 MiB")
    assert status == 0
    assert document.keys() >= FIELDS | {"memory_bytes", "disk_bytes", "most_seconds", "plans"}
    assert document["planned_depth"] == 3 * (3 + document["planned_n3"]) + 2 > 14
    assert document["trained_depth"] is document["step"] is None
    best = next(p for p in document["plans"] if p["n3"] == document["planned_n3"])
    assert best["outside_bytes"] <= document["disk_bytes"] == 120 * 2**20
    by_seconds = best["predicted_seconds"] * 0.99
    _, shallower = searched(capsys, "--plan-only", "--memory", "40 MiB", "--most-seconds", str(by_seconds))
    assert shallower["planned_depth"] < document["planned_depth"]


def test_a_depth_is_confirmed_by_a_real_step(capfd):
    with memory_cgroup(400 * 2**20):
        pass  # skips where none can be made
    assert main([*TINY, "--memory", "40 MiB", "--spill-size", "100 MiB"]) == 0
    text = capfd.readouterr().out
    for words in ("planned depth", "trained depth", "one real step", "hidden", "kernel's count"):
        assert words in text


def test_pytorch_is_searched_by_real_steps(capfd, monkeypatch):
    tried = []

    class Side:
        """A side that fits up to n3 = 5."""

        def __init__(self, name, options, limit):
            n3 = int(options["model"].split(",")[2])
            tried.append(n3)
            self.fits, self.message = n3 <= 5, "" if n3 <= 5 else "killed: out of memory"
            self.seconds, self.losses, self.peak_bytes = ([0.5], [7.0], 3) if self.fits else ([], [], None)

        def start(self):
            pass

        step = end = kill = start

    monkeypatch.setattr(depth, "SideProcess", Side)
    monkeypatch.setattr(depth, "read_libraries", lambda: None)
    with memory_cgroup(400 * 2**20):
        pass
    status = main([*TINY, "--side", "torch-checkpoint", "--within", "0.01", "--json"])
    document = json.loads(capfd.readouterr().out)
    assert (status, document["trained_n3"], document["trained_depth"]) == (0, 5, 26)
    assert document["step"] == {
        "n3": 5, "depth": 26, "fits": True, "message": "", "seconds": 0.5, "loss": 7.0, "limit_peak_bytes": 3,
    }  # fmt: skip
    assert len(tried) == len(set(tried)) == len(document["trials"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--side", "torche"], "Did you mean"),
        (["--n1", "0"], "--n1: expected"),
        (["--start", "0"], "--start: expected"),
        (["--limit", "much"], "--limit: expected"),
        (["--limit", ""], "--limit: expected"),
        (["--within", "2"], "--within: expected"),
        (["--device", "null"], "--device: expected one that computes"),
        (["--most-seconds", "0"], "--most-seconds: expected"),
        (["--plan-only", "--side", "torch"], "--plan-only: expected"),
        (["--memory", "much"], "expected a positive number of bytes"),
        (["--spill-dir", "/nowhere"], "no such folder"),
        (["--strategy", "streem"], "Did you mean"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, words, capsys):
    assert main([*TINY, *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert words in captured.err


def test_whoever_stops_the_search_has_stopped_it(capsys, monkeypatch):
    """The real step that was stopped with it is no reason to try a smaller network."""
    started = []

    def stopped(arguments, limit_bytes, *, read):
        started.append(arguments[0])
        return LimitedEnd(130, (), None, interrupted=True)

    monkeypatch.setattr(depth, "run_limited", stopped)
    assert main([*TINY, "--memory", "40 MiB", "--spill-size", "100 MiB"]) == 130
    assert started == ["resnet2500"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handed_on_and_remembered(number):
    code = "import signal, sys, time; print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        with hand_on_signals(process) as handed:
            assert process.stdout.readline() == "ready\n"
            assert not handed
            os.kill(os.getpid(), number)
            assert process.wait(30) in (-number, 1)
        assert handed == [number]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
