"""Every choice of a run is read once, when the settings are made, and stored as a value."""

import pickle
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.settings import Choices, Settings
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.plan.link import Link, parse_link
from bathyal.scheduler.strategies.names import StrategyName, parse_strategy

SHAPE = (4, 3, 8, 8)
GIVEN = {
    "optimizer": bt.SGD(0.05, momentum=0.9),
    "memory": "400 MiB",
    "strategy": "offload:lru",
    "kernels": "fixed",
    "device": "reference",
    "dtype": "float64",
    "seed": np.int64(7),
    "threads": 2,
    "costs": "analytic",
    "link": "600 MB,1.5 GB",
    "spill_dir": "somewhere",
    "spill_size": "1 GB",
    "math": "float32",
    "cuda_graphs": False,
}


def network():
    return bt.Sequential(bt.Conv2d(4, 3), bt.ReLU(), bt.Flatten(), bt.Linear(3))


def test_choices_are_stored_as_values():
    settings = Settings(input_shape=np.array(SHAPE), **GIVEN)
    assert settings.input_shape == SHAPE and all(type(n) is int for n in settings.input_shape)
    assert settings.memory == 400 * 2**20
    assert settings.strategy == parse_strategy("offload:lru")
    assert settings.kernels is Kernels.FIXED
    assert (settings.seed, type(settings.seed)) == (7, int)
    assert settings.link == parse_link("600 MB,1.5 GB")
    assert settings.spill_dir == Path.cwd() / "somewhere"
    assert settings.spill_size == 10**9
    assert settings.cuda_graphs is False


def test_what_is_not_given_is_what_the_documents_say():
    settings = Settings(input_shape=SHAPE, optimizer=None)
    assert settings.optimizer == bt.SGD()
    assert (settings.memory, settings.link, settings.spill_dir, settings.spill_size, settings.threads) == (None,) * 5
    assert (settings.device, settings.dtype, settings.costs, settings.seed) == ("auto", "float32", "measured", 0)
    assert (settings.strategy, settings.kernels) == (StrategyName("auto"), Kernels.FIT)


def test_values_may_be_given_again():
    settings = Settings(input_shape=SHAPE, **GIVEN)
    assert replace(settings) == settings
    changed = replace(settings, memory="1 GiB", link=Link(1e9, 2e9))
    assert (changed.memory, changed.link, changed.strategy) == (2**30, Link(1e9, 2e9), settings.strategy)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_they_are_a_frozen_record_of_keywords():
    settings = Settings(input_shape=SHAPE)
    with pytest.raises(FrozenInstanceError):
        settings.memory = 1
    assert not hasattr(settings, "__dict__")
    with pytest.raises(TypeError):
        Settings(SHAPE)
    with pytest.raises(TypeError, match="memmory"):
        bt.Trainer(network(), SHAPE, memmory="1 GiB")


def test_the_choices_that_a_trainer_is_given_are_those_of_the_settings():
    assert {"input_shape", *Choices.__annotations__} == {field.name for field in fields(Settings)}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"memory": "banana"}, "memory: expected a positive number of bytes"),
        ({"memory": 0}, "at least one byte"),
        ({"memory": -1}, "at least one byte"),
        ({"memory": float("nan")}, "nan, a float"),
        ({"memory": 1e9}, r"write int\(1000000000.0\)"),
        ({"memory": True}, "True, a bool"),
        ({"memory": 2**63}, "2\\*\\*63 - 1"),
        ({"memory": [1]}, "a list"),
        ({"spill_size": "banana"}, "spill_size: expected"),
        ({"spill_size": 0}, "spill_size: expected"),
        ({"spill_size": False}, "spill_size: expected"),
        ({"spill_dir": ""}, "spill_dir: expected the name of a folder"),
        ({"spill_dir": b"/tmp"}, "spill_dir"),
        ({"spill_dir": 5}, "spill_dir"),
        ({"link": "fast"}, "link: expected"),
        ({"link": 1000}, "link: expected a text"),
        ({"link": "1,2,3"}, "link: expected"),
        ({"link": "nan"}, "link: expected"),
        ({"device": "cdua"}, "Did you mean 'cuda'"),
        ({"device": None}, "device: expected one of auto, cuda, onednn, reference, null"),
        ({"strategy": 3}, "strategy: expected"),
        ({"strategy": None}, "strategy: expected"),
        ({"kernels": None}, "kernels: expected"),
        ({"threads": True}, "threads: expected a whole number"),
        ({"threads": 1.0}, "threads: expected a whole number"),
        ({"threads": 10**6}, "threads: expected a whole number from 1 to"),
        ({"seed": True}, "seed: expected a whole number"),
        ({"seed": "7"}, "seed: expected a whole number"),
        ({"seed": 2**63}, "seed: expected a whole number from 0"),
        ({"cuda_graphs": "no"}, "cuda_graphs: expected True or False"),
        ({"math": "fp8"}, "math: expected one of"),
        ({"math": "tf32", "device": "null"}, "'float32' on the device 'null'"),
        ({"optimizer": 0.1}, "optimizer: expected"),
        ({"learning_rate": "fast"}, "learning_rate: expected"),
        ({"learning_rate": True}, "learning_rate: expected"),
        ({"learning_rate": float("nan")}, "learning_rate: expected"),
        ({"learning_rate": -1.0}, "learning_rate: expected"),
        ({"cache": 5}, "cache: expected the name of a folder"),
        ({"plan": ""}, "plan: expected the name of a file"),
    ],
)
def test_a_trainer_refuses_what_makes_no_sense_when_it_is_made(choice, words):
    with pytest.raises(bt.ConfigError, match=words):
        bt.Trainer(network(), SHAPE, **choice)


def test_a_network_that_is_none_is_refused_too():
    with pytest.raises(bt.GraphError, match="Trainer: expected a layer"):
        bt.Trainer("resnet18", SHAPE)


def test_both_ways_to_a_trainer_are_one():
    choices = {"memory": "1 MiB", "device": "reference", "costs": "analytic", "seed": 3}
    settings = Settings(input_shape=SHAPE, **choices)
    images, labels = np.ones(SHAPE), np.zeros(4, int)
    with (
        bt.Trainer(network(), SHAPE, **choices, learning_rate=0.5) as one,
        bt.Trainer.with_settings(network(), settings, learning_rate=0.5) as other,
    ):
        assert one.settings == other.settings == settings
        assert one.learning_rate == other.learning_rate == 0.5
        assert one.train_step(images, labels).loss == other.train_step(images, labels).loss
        assert one.state.weights_sha256() == other.state.weights_sha256()
    with pytest.raises(TypeError, match="memory"):
        bt.Trainer.with_settings(network(), settings, memory="1 GiB")


class TestTheEarlierNameOfDevice:
    """`backend=` is still taken."""

    def test_it_chooses_and_warns(self):
        with pytest.warns(DeprecationWarning, match=r"Trainer\(device=...\)") as warned:
            trainer = bt.Trainer(network(), SHAPE, backend="reference")
        assert trainer.settings.device == "reference"
        assert [str(Path(w.filename)) for w in warned] == [__file__]

    @pytest.mark.filterwarnings("ignore:Trainer:DeprecationWarning")
    def test_both_names_have_to_agree(self):
        assert bt.Trainer(network(), SHAPE, backend="null", device="null").settings.device == "null"
        with pytest.raises(bt.ConfigError, match="backend: expected what device= says, 'null', got 'reference'"):
            bt.Trainer(network(), SHAPE, backend="reference", device="null")
        with pytest.raises(bt.ConfigError, match="Did you mean 'reference'"):
            bt.Trainer(network(), SHAPE, backend="refrence")


def test_choices_are_read_nowhere_else():
    """Who wants a size, a strategy or a link in the engine or on the command line takes what the settings hold."""
    root = Path(__file__).parents[2]
    readers = {"engine/settings.py", "bathyal/__init__.py", "bathyal/options/limit.py", "bathyal/commands/curve.py"}
    sources = [
        *(root / "engine").rglob("*.py"),
        *(p for p in (root / "bathyal").rglob("*.py") if "backends" not in str(p)),
    ]
    for path in {p.resolve() for p in sources}:
        name = str(path.relative_to(root.resolve()))
        if name.split("/")[0] in ("engine", "bathyal") and name not in readers:
            text = path.read_text()
            assert not any(f"parse_{what}(" in text for what in ("size", "strategy", "link")), name


def test_more_threads_than_cores_are_warned_of_and_many_more_refused(monkeypatch, caplog):
    monkeypatch.setattr("bathyal.engine.settings.count_usable_cores", lambda: 2)
    assert Settings(input_shape=SHAPE, threads=2, device="reference").count_threads() == 2
    assert not caplog.records
    assert Settings(input_shape=SHAPE, threads=16, device="reference").count_threads() == 16
    assert "16 on the 2 cores" in caplog.text
    for threads in (17, 10_000):
        with pytest.raises(bt.ConfigError, match="from 1 to 16") as refused:
            Settings(input_shape=SHAPE, threads=threads)
        assert "2 cores" in refused.value.hint


def test_the_default_number_of_threads_is_bound_by_the_variable(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert Settings(input_shape=SHAPE).count_threads() == 1
