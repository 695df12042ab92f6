"""Where moved tensors go in a session: rates, folder and room, and what happens when the disk fails in mid-step."""

import json
import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.planning import spill
from bathyal.engine.planning.alone import make_problem_without_memory
from bathyal.engine.planning.background_load import BackgroundLoad
from bathyal.engine.planning.spill import Spill
from bathyal.engine.settings import Settings
from bathyal.memory.arena import Arena
from bathyal.memory.devices.bandwidth import Bandwidth
from bathyal.memory.devices.host import HostDevice
from bathyal.scheduler.plan.link import USUAL_CONTENTION, Link
from tests.support.host_tier import HostTier

SHAPE = (8, 3, 12, 12)
MIB = 2**20


@pytest.fixture(autouse=True)
def any_file_system(monkeypatch):
    """Pytest's folder may be in memory."""
    monkeypatch.setattr("bathyal.memory.tiers.spill_folder.memory_file_system", lambda folder: "")


def network():
    return bt.Sequential(
        *(part for _ in range(3) for part in (bt.Conv2d(8, 3, padding=1, bias=False), bt.BatchNorm2d(), bt.ReLU())),
        bt.Dropout(0.2),
        bt.Conv2d(4, 3, padding=1),
        bt.Flatten(),
        bt.Linear(5),
        name="spilled",
    )


def trainer(**choices):
    choices = {"strategy": "offload", "memory": "2 MiB", "link": "1 GB", **choices}
    optimizer = bt.SGD(0.02, momentum=0.9)
    return bt.Trainer(network(), SHAPE, optimizer=optimizer, device="reference", costs="analytic", threads=1, **choices)


@pytest.fixture(scope="module")
def least():
    """The smallest budget of `offload`, at which tensors move in every step."""
    with trainer() as t:
        return t.plan.min_budget_bytes


def batches(count, size=8):
    for number in range(count):
        rng = np.random.default_rng(number)
        yield rng.normal(size=(size, *SHAPE[1:])).astype(np.float32), rng.integers(0, 5, size)


class FailingTier(HostTier):
    """Breaks on the given transfer of a direction."""

    def __init__(self, nbytes, direction, number):
        super().__init__(nbytes)
        self._direction, self._left = direction, number
        self.closed = False

    def _count(self, direction):
        if direction == self._direction:
            self._left -= 1
            if self._left < 0:
                raise bt.DeviceError("disk", "a whole transfer", "Input/output error")

    def write(self, address, source):
        self._count("write")
        super().write(address, source)

    def read(self, address, target):
        self._count("read")
        super().read(address, target)

    def close(self):
        self.closed = True
        super().close()


def our_threads():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("bathyal"))


@pytest.mark.parametrize("direction", ["write", "read"])
@pytest.mark.parametrize("number", [0, 3, 30])
def test_a_disk_that_fails_in_mid_step_ends_the_training_and_nothing_hangs(direction, number, least, tmp_path, caplog):
    tiers = []

    def make_tier(nbytes):
        tiers.append(FailingTier(nbytes, direction, number))
        return tiers[-1]

    before = our_threads()
    with trainer(memory=least, make_tier=make_tier) as t, caplog.at_level(logging.CRITICAL):
        moves = sum(
            1 for step in t.plan.steps if type(step).__name__ == {"write": "Offload", "read": "Fetch"}[direction]
        )
        assert moves >= 4
        done = number // moves
        stream = iter(batches(40))
        for _ in range(done):
            t.train_step(*next(stream))
        with pytest.raises(bt.DeviceError, match=r"Input/output error") as raised:
            t.train_step(*next(stream))
        assert raised.value.where.startswith("queue ")
        for refused in (lambda: t.train_step(*next(stream)), lambda: t.save(tmp_path), lambda: t.evaluate(batches(1))):
            with pytest.raises(bt.ConfigError, match=f"step {done + 1} that broke off halfway"):
                refused()
    assert our_threads() == before
    assert [tier.closed for tier in tiers] == [True]


def test_after_a_failure_a_run_goes_on_from_its_checkpoint(least, tmp_path):
    with trainer(strategy="keep") as whole:
        expected = [result.loss for result in whole.fit(batches(6))]
        digest = whole.state.weights_sha256()
    makes = iter([lambda nbytes: FailingTier(nbytes, "read", 20), HostTier])
    losses = []
    with trainer(memory=least, make_tier=lambda nbytes: next(makes)(nbytes)) as t:
        with pytest.raises(bt.DeviceError):
            for result in t.fit(batches(6)):
                losses.append(result.loss)
                t.save(tmp_path)
        assert 0 < len(losses) < 6
        assert t.restore(tmp_path)
        losses += [result.loss for number, result in enumerate(t.fit(list(batches(6))))]
        assert losses == expected
        assert t.state.weights_sha256() == digest


def test_a_resumed_run_moves_as_before(least, tmp_path):
    """The kernels of a checkpoint do not make the planner forget the link."""
    with trainer(memory=least) as t:
        list(t.fit(batches(2)))
        t.save(tmp_path)
        plan = t.plan
    with trainer(memory=least) as t:
        assert t.restore(tmp_path)
        assert t.plan == plan


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_steps_take_no_more_files_threads_or_memory_and_change_no_bit(least, tmp_path):
    data = list(batches(4))

    def trained(**choices):
        sizes = []
        with trainer(**choices) as t:
            for step in range(1000):
                t.train_step(*data[step % 4])
                if step in (99, 999):
                    sizes.append((open_files(), len(our_threads()), resident_bytes()))
            return t.state.weights_sha256(), t.plan.offloaded_bytes, sizes

    expected, _, _ = trained(strategy="keep", memory="4 MiB")
    before = open_files()
    found, moved, (early, late) = trained(memory=least, spill_dir=str(tmp_path))
    assert found == expected
    assert moved > 0
    assert early[:2] == late[:2]
    assert late[2] - early[2] < 2 * MIB
    assert open_files() == before
    assert not any(tmp_path.iterdir())


def settings(**choices):
    return Settings(
        input_shape=SHAPE,
        optimizer=bt.SGD(0.1),
        memory="4 MiB",
        strategy="offload",
        kernels="fixed",
        device="reference",
        costs="analytic",
        **choices,
    )


@pytest.fixture
def measured(monkeypatch):
    """Each measurement, in turn faster; no disk is used."""
    calls = []

    def measure(tier, memory, work):
        calls.append((tier.nbytes, memory.nbytes))
        return Bandwidth(3000.0, 700.0, 900.0, 400.0, 1000.0 * len(calls), 500.0, 0.25)

    monkeypatch.setattr("bathyal.memory.devices.host.measure_link", measure)
    monkeypatch.setattr(spill, "DiskTier", lambda folder, nbytes, **choices: HostTier(nbytes))
    monkeypatch.setattr(spill, "check_spill_folder", lambda folder: None)
    return calls


def load(name="here"):
    """The operations of the network beside which transfers are timed."""
    problem, _ = make_problem_without_memory(network(), settings())
    return BackgroundLoad(problem.graph, problem.costs, ReferenceBackend(), name)


def test_rates_that_are_given_are_taken(measured, tmp_path):
    with HostDevice(Arena(MIB)) as device:
        found = Spill(settings(link="10 kB,20 kB"), tmp_path).find_link(device, load())
        assert found == Link(10_000, 20_000, USUAL_CONTENTION)
    assert not measured


def test_rates_are_measured_once_and_kept(measured, tmp_path):
    disk, cache = tmp_path / "disk", tmp_path / "cache"
    disk.mkdir()
    choices = settings(spill_dir=str(disk))
    with HostDevice(Arena(MIB)) as device:
        first = Spill(choices, cache)
        assert first.find_link(device, load()) == first.find_link(device, load()) == Link(1000.0, 500.0, 0.25)
        assert measured == [(MIB // 2, MIB // 2)]
        kept = Spill(choices, cache).find_link(device, load())
        assert (kept.out_bytes_per_second, kept.in_bytes_per_second) == pytest.approx((1000, 500))
        assert kept.contention == 0.25
        assert len(measured) == 1
        assert Spill(choices, None).find_link(device, load()).out_bytes_per_second == pytest.approx(2000)
        assert Spill(choices, cache).find_link(device, load("elsewhere")).out_bytes_per_second == pytest.approx(3000)


@pytest.mark.parametrize("value", [0, -1, "fast", float("inf"), float("nan"), None])
def test_kept_rates_that_cannot_be_are_measured_again(value, measured, tmp_path):
    choices = settings(spill_dir=str(tmp_path))
    with HostDevice(Arena(MIB)) as device:
        Spill(choices, tmp_path).find_link(device, load())
        (path,) = tmp_path.glob("costs-*.json")
        document = json.loads(path.read_text())
        document["seconds"] = dict.fromkeys(document["seconds"], value)
        path.write_text(json.dumps(document))
        assert Spill(choices, tmp_path).find_link(device, load()).out_bytes_per_second == pytest.approx(2000)


def test_no_more_is_used_for_measuring_than_may_be_written(measured, tmp_path):
    with HostDevice(Arena(MIB)) as device:
        Spill(settings(spill_dir=str(tmp_path), spill_size="64 KiB"), None).find_link(device, load())
    assert measured == [(64 * 2**10, 64 * 2**10)]


def test_too_little_to_measure_with_is_refused_for_what_it_is(tmp_path):
    """Not for what measuring needs of a tier."""
    for choices, match in (({"memory": 4096}, "memory for strategy"), ({"spill_size": "4 KiB"}, "--spill-size")):
        cache = tmp_path / match.strip("-")
        choices = {"link": None, "cache": cache, "spill_dir": str(tmp_path), **choices}
        with trainer(**choices) as t, pytest.raises(bt.BudgetError, match=match):
            _ = t.plan


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_folder_that_will_not_do_is_refused_before_training(name, least, tmp_path):
    (tmp_path / "file").write_text("")
    with trainer(memory=least, spill_dir=str(tmp_path / name)) as t, pytest.raises(bt.ConfigError, match="--spill-dir"):
        t.train_step(*next(batches(1)))


def test_a_plan_that_needs_more_room_than_may_be_used_is_refused(least, tmp_path):
    choices = {"memory": least, "spill_dir": str(tmp_path), "spill_size": "4 KiB"}
    with trainer(**choices) as t, pytest.raises(bt.BathyalError, match="--spill-size"):
        t.train_step(*next(batches(1)))


def test_the_programs_of_a_run_share_their_room(measured, least, tmp_path):
    """A last short batch has a plan of its own, and does not take as much again."""
    choices = settings(spill_dir=str(tmp_path), spill_size="64 KiB")
    places = Spill(choices, None)
    device = HostDevice(Arena(MIB))
    assert places.current_tier is places.open_tier(0, device) is None
    whole = places.open_tier(48 * 2**10, device)
    assert places.open_tier(32 * 2**10, device) is places.open_tier(0, device) is places.current_tier is whole
    assert whole.nbytes == 48 * 2**10
    assert places.open_tier(60 * 2**10, device) is whole
    assert whole.nbytes >= 60 * 2**10
    places.close()
    device.close()
    assert places.current_tier is None
    opened = []

    def make_tier(nbytes):
        opened.append(nbytes)
        return HostTier(nbytes)

    with trainer(memory=least, make_tier=make_tier) as t:
        for size in (8, 5, 8, 5):
            t.train_step(*next(batches(1, size)))
        assert opened == [t.plan.outside_bytes]


def test_nothing_moves_and_nothing_is_opened_where_everything_fits():
    def no_tier(nbytes):
        raise AssertionError("a tier for nothing")

    with trainer(make_tier=no_tier, memory="16 MiB") as t:
        list(t.fit(batches(1)))
        assert t.plan.outside_bytes == 0


@pytest.mark.parametrize("link", [1e9, 5, ("1 GB", "1 GB"), "", ",", "1 GB,", "0", "-1", "nan", "1,2,3", "1 Gb"])
def test_rates_that_do_not_read_as_two_sizes_are_refused_at_once(link):
    with pytest.raises(bt.ConfigError, match="link"):
        trainer(link=link)


@pytest.mark.parametrize("spill_dir", ["", 5, b"x"])
def test_a_folder_without_a_name_is_not_the_current_one(spill_dir):
    with pytest.raises(bt.ConfigError, match="spill_dir"):
        trainer(spill_dir=spill_dir)


@pytest.mark.parametrize("spill_size", [0, -1, "", "nan", 1.5, "1 Gb"])
def test_room_that_is_no_size_is_refused_at_once(spill_size):
    with pytest.raises(bt.ConfigError, match="spill_size"):
        trainer(spill_size=spill_size)
