"""Pictures and curves on the command line; and that a user's matplotlib is left as it is."""

import json
import subprocess
import sys

import pytest
from matplotlib.colors import to_hex

from bathyal.cli import main, make_parser
from bathyal.engine.planning.alone import plan_without_memory
from bathyal.options.network import choose_network
from bathyal.pictures import plan as plan_picture
from bathyal.scheduler.plan.occupancy import measure_occupancy

NETWORK = ["small_resnet", "--image", "8", "--batch", "8", "--device", "null"]
BEGINS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("suffix", BEGINS)
def test_a_plan_is_drawn(tmp_path, suffix, capsys):
    path = tmp_path / ("plan" + suffix)
    assert main(["plan", *NETWORK, "--memory", "1700 KiB", "--json", "--plot", str(path)]) == 0
    assert lines(capsys.readouterr().out)[0]["feasible"]
    assert path.read_bytes().startswith(BEGINS[suffix])


def test_a_plan_says_what_is_drawn(tmp_path, capsys):
    path = tmp_path / "plan.svg"
    script = f"""
import matplotlib
matplotlib.rcParams["svg.fonttype"] = "none"
from bathyal.cli import main
main(["plan", *{NETWORK!r}, "--memory", "1700 KiB", "--strategy", "chain", "--plot", {str(path)!r}])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    words = ("state", "activations", "gradients", "forward", "loss", "backward", "budget 1.7 MiB", "computed again")
    for word in words:
        assert word in text


def drawn_lanes(*arguments):
    """Of the picture of a plan, the spans of each lane in seconds, their heights, and the top of all that is drawn."""
    options = make_parser().parse_args(["plan", *NETWORK, "--costs", "analytic", *arguments])
    setup = choose_network(options)
    planned = plan_without_memory(setup.network, setup.settings, setup.settings.memory)
    (axes,) = plan_picture.draw(planned).axes
    colors = {color: name for name, color in plan_picture.LANES.items()}
    lanes = {}
    for bars in axes.collections:
        name = colors.get(to_hex(bars.get_facecolor()[0]))
        if name:
            lanes[name] = [path.get_extents() for path in bars.get_paths()]
    words = {text.get_text() for text in axes.texts}
    return lanes, words, axes.get_ylim()[1], planned


def test_transfers_are_drawn_in_a_lane_for_each_direction():
    lanes, words, top, planned = drawn_lanes("--strategy", "offload", "--memory", "1700 KiB", "--link", "1 GB,2 GB")
    carries = measure_occupancy(planned.plan, planned.graph, planned.costs).transfers
    assert len(carries) > 4
    assert words >= {"out", "in"}
    for name, outward in (("out", True), ("in", False)):
        same = [carry for carry in carries if carry.outward is outward]
        assert [box.x0 for box in lanes[name]] == pytest.approx([carry.start for carry in same])
        assert [box.x1 for box in lanes[name]] == pytest.approx([carry.end for carry in same])
        budget = planned.plan.budget_bytes / 2**20
        assert all(max(budget, planned.plan.peak_bytes / 2**20) < box.y0 < box.y1 < top for box in lanes[name])
    assert {box.y1 for box in lanes["out"]}.pop() < {box.y0 for box in lanes["in"]}.pop()


def test_without_transfers_there_are_no_lanes():
    lanes, words, _, planned = drawn_lanes("--strategy", "offload", "--memory", "64 MiB", "--link", "1 GB")
    assert planned.plan.outside_bytes == 0
    assert not lanes
    assert words.isdisjoint({"out", "in"})


def test_a_long_step_is_drawn_by_its_fullest_moments(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bathyal.pictures.plan.COLUMNS", 20)
    path = tmp_path / "plan.png"
    assert main(["plan", *NETWORK, "--memory", "8 GiB", "--plot", str(path)]) == 0
    assert path.exists()


def test_a_curve_is_printed_and_drawn(tmp_path, capsys):
    path = tmp_path / "curve.png"
    assert main(["curve", *NETWORK, "--points", "3", "--json", "--plot", str(path)]) == 0
    points = lines(capsys.readouterr().out)
    assert {p["strategy"] for p in points} == {"liveness", "chain", "sequential", "revolve"}
    assert all(p["ratio"] >= 1 - 1e-9 for p in points)
    assert {"budget_bytes", "peak_bytes", "predicted_seconds", "lower_bound_seconds"} <= points[0].keys()
    assert path.read_bytes().startswith(BEGINS[".png"])


def test_a_curve_in_words(capsys):
    assert main(["curve", *NETWORK, "--points", "2", "--strategies", "chain, sequential:3,chain"]) == 0
    text = capsys.readouterr().out.splitlines()
    assert "over bound" in text[1]
    assert [row.split()[0] for row in text[2:]] == ["chain", "chain", "sequential:3"]


def test_a_curve_with_measured_costs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = ["small_resnet", "--image", "8", "--batch", "2", "--device", "reference", "--points", "2", "--json"]
    assert main(["curve", *arguments, "--strategies", "chain"]) == 0
    assert len(lines(capsys.readouterr().out)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["curve", *NETWORK, "--points", "1"], "--points"),
        (["curve", *NETWORK, "--strategies", ""], "one of"),
        (["curve", *NETWORK, "--strategies", "chain,revolv"], "'revolve'"),
        (["curve", *NETWORK, "--strategies", "sequential:99"], "is the nearest"),
        (["curve", *NETWORK, "--plot", "curve"], ".svg"),
        (["plan", *NETWORK, "--plot", "plan.jpeg"], ".png"),
        (["plan", *NETWORK, "--memory", "4 MiB", "--plot", "/nowhere/plan.png"], "/nowhere/plan.png"),
    ],
)
def test_mistakes_end_in_one_line_that_helps(arguments, message, capsys):
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("bathyal: ")
    assert message in error


@pytest.mark.parametrize("command", ["plan", "curve"])
def test_without_matplotlib_it_says_what_to_install(command, tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([command, *NETWORK, "--plot", str(tmp_path / "picture.png")]) == 1
    captured = capsys.readouterr()
    assert "pip install 'bathyal[plot]'" in captured.err
    assert captured.out == ""
    assert main(["plan", *NETWORK, "--memory", "4 MiB"]) == 0


def test_matplotlib_of_the_user_is_left_alone(tmp_path):
    script = f"""
import sys
from bathyal.cli import main
main(["plan", *{NETWORK!r}, "--memory", "4 MiB", "--json"])
assert "matplotlib" not in sys.modules
import matplotlib
matplotlib.rcParams["lines.linewidth"] = 7.5
before = dict(matplotlib.rcParams.copy())
main(["plan", *{NETWORK!r}, "--memory", "4 MiB", "--json", "--plot", {str(tmp_path / "plan.png")!r}])
assert "matplotlib.pyplot" not in sys.modules
assert dict(matplotlib.rcParams.copy()) == before
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
