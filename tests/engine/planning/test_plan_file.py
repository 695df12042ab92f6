"""Plans on disk: the same plan comes back and runs; what belongs elsewhere or is damaged is refused in words."""

import json
import os
import random
import stat

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.atomic_write import write_whole
from bathyal.engine.planning.plan_file import load_plan
from bathyal.memory.errors import ConfigError, PlanError

SHAPE = (4, 3, 8, 8)


def network(channels=6):
    return bt.Sequential(
        bt.Conv2d(channels, 3, padding=1, bias=False),
        bt.BatchNorm2d(),
        bt.ReLU(),
        bt.Conv2d(channels, 3, padding=1),
        bt.ReLU(),
        bt.Conv2d(channels, 3, padding=1),
        bt.ReLU(),
        bt.Flatten(),
        bt.Linear(4),
        name="saved",
    )


def trainer(net=None, shape=SHAPE, **choices):
    choices = {"memory": None, "device": "reference", "costs": "analytic", "threads": 1, **choices}
    return bt.Trainer(net or network(), shape, optimizer=bt.SGD(0.1, momentum=0.9), **choices)


@pytest.fixture
def saved(tmp_path):
    """A file with a plan that repeats operations, and its plan."""
    with trainer(strategy="chain", memory="1 MiB") as t:
        least = t.plan.min_budget_bytes
    with trainer(strategy="chain", memory=least) as t:
        t.save_plan(tmp_path / "plan.json")
        assert t.plan.recomputed_ops > 0
        return tmp_path / "plan.json", t.plan


def trained(t):
    rng = np.random.default_rng(0)
    with t:
        for _ in range(3):
            t.train_step(rng.normal(size=SHAPE), rng.integers(0, 4, SHAPE[0]))
        return t.state.weights_sha256()


def test_a_saved_plan_is_followed_whatever_the_strategy(saved):
    path, plan = saved
    with trainer(strategy="keep", plan=path) as t:
        assert t.plan == plan
        assert t.arena_high_water_bytes == plan.peak_bytes
    assert trained(trainer(plan=path)) == trained(trainer(strategy="keep", memory="4 MiB"))


def test_a_short_batch_has_a_plan_of_its_own(saved):
    path, plan = saved
    rng = np.random.default_rng(0)
    with trainer(plan=str(path), memory="1 MiB") as t:
        t.train_step(rng.normal(size=SHAPE)[:3], np.zeros(3, np.int64))
        assert t.plan == plan


@pytest.mark.parametrize(
    ("net", "shape", "choices", "names"),
    [
        (network(8), SHAPE, {}, "graph"),
        (None, (5, 3, 8, 8), {}, "5×3×8×8"),
        (None, SHAPE, {"dtype": "float64"}, "float64"),
        (None, SHAPE, {"threads": 2}, "--threads 1"),
        (None, SHAPE, {"device": "null"}, "--device reference"),
        (None, SHAPE, {"memory": -1}, "--memory"),
    ],
)
def test_what_differs_is_named(saved, net, shape, choices, names):
    path, plan = saved
    if choices.get("memory") == -1:
        choices = {"memory": plan.budget_bytes - 1}
    with trainer(net, shape, plan=path, **choices) as t, pytest.raises(PlanError, match=names):
        _ = t.plan


def changed(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda d: d.update(version="0.1"), "version 0.1"),
        (lambda d: d["kernels"].__setitem__(0, "other"), "other"),
        (lambda d: d["kernels"].clear(), "kernel"),
        (lambda d: d.update(bathyal_plan=7), "format 7"),
        (lambda d: d.pop("bathyal_plan"), "other JSON"),
        (lambda d: d.pop("threads"), "threads"),
        (lambda d: d.update(threads="1"), "other types"),
        (lambda d: d["plan"].pop("steps"), "steps"),
        (lambda d: d["plan"].update(predicted_seconds=float("nan")), "other types"),
        (lambda d: d["plan"]["instances"][-1].__setitem__(3, "64"), "other types"),
        (lambda d: d["plan"]["steps"][0].__setitem__(1, 10**6), "operation 1000000"),
        (lambda d: d["plan"]["steps"].pop(), "step"),
        (lambda d: d["plan"]["instances"][-1].__setitem__(4, 0), "address"),
        (lambda d: d.update(plan=3), "TypeError|PlanError"),
        (lambda d: d.update(plan=[1] * 5), "PlanError"),
    ],
)
def test_a_changed_file_is_refused(saved, change, names):
    path, _ = saved
    changed(path, change)
    with trainer(plan=path) as t, pytest.raises(PlanError, match=names):
        _ = t.plan


def test_no_number_in_a_file_can_be_changed_into_a_crash(saved):
    path, _ = saved
    whole = path.read_text()
    rng = random.Random(0)
    for _ in range(60):
        document = json.loads(whole)
        rows = document["plan"][rng.choice(("steps", "instances"))]
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice((-1, 0, 1, 7, 10**9, None, [0], "1", 2**70))
        path.write_text(json.dumps(document))
        with trainer(plan=path) as t:
            try:
                found = t.plan
            except PlanError:
                continue
            assert found.peak_bytes <= found.budget_bytes


@pytest.mark.parametrize("part", [0, 1, 100, 0.5, -2])
def test_a_file_that_is_cut_off_says_so(saved, part):
    path, _ = saved
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content)) if isinstance(part, float) else part])
    with pytest.raises(PlanError, match=r"plan\.json.*no JSON"):
        load_plan(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"9" * 5000, b"[1]", b"null", b'"bathyal_plan"'])
def test_what_is_no_plan_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(PlanError, match="save-plan"):
        load_plan(tmp_path / "file")


def test_a_file_that_is_not_there_says_so(tmp_path):
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(PlanError, match=r"No such file|directory"):
            load_plan(path)


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"first")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~current_umask()
    link = tmp_path / "link"
    link.symlink_to(path)
    write_whole(link, b"second")
    assert link.is_symlink()
    assert path.read_bytes() == b"second"

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as failed:
        write_whole(path, b"third")
    assert failed.value.filename == str(path)
    assert path.read_bytes() == b"second"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link"]


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError, match="regular file"):
            write_whole(path, b"")
