import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bathyal.memory.arena import Arena
from bathyal.memory.devices.bandwidth import measure_link
from bathyal.memory.errors import ConfigError
from bathyal.memory.tiers.disk import DiskTier
from bathyal.memory.tiers.tier import check_range
from tests.support.host_tier import HostTier

MIB = 2**20


class Ticking:
    """A tier of a known bandwidth on a clock of its own; notes every transfer. Keeps no bytes."""

    def __init__(self, nbytes, out, inward):
        self.name, self.nbytes = "ticking", nbytes
        self.seconds, self.moves = 0.0, []
        self._bandwidth = {"out": out, "inward": inward}
        self._lock = threading.Lock()

    def clock(self):
        return self.seconds

    def write(self, address, source):
        self._move("out", address, source)

    def read(self, address, target):
        self._move("inward", address, target)

    def _move(self, direction, address, array):
        check_range(self, address, array.nbytes)
        with self._lock:
            self.seconds += array.nbytes / self._bandwidth[direction]
            self.moves.append((direction, address, array.nbytes))


@pytest.mark.parametrize("nbytes", [8192, 3 * 4096, 300_000, 5 * MIB, 500 * MIB])
@pytest.mark.parametrize(("out", "inward"), [(1e6, 2e6), (300e6, 100e6), (5e9, 7e9)])
def test_each_direction_alone_is_what_the_link_gives(nbytes, out, inward):
    tier = Ticking(nbytes, out, inward)
    with Arena(nbytes) as arena:
        found = measure_link(tier, arena.memory, clock=tier.clock)
    assert (found.out, found.inward) == pytest.approx((out, inward))
    assert (found.out_beside, found.inward_beside, found.contention) == (found.out, found.inward, 0.0)
    # Both at once share this clock, which stands still for no one.
    assert 0 < found.out_together <= out * 1.001
    assert 0 < found.inward_together <= inward * 1.001


@pytest.mark.parametrize("bandwidth", [3e5, 1e7, 1e8, 1e9, 1e11])
def test_time_and_bytes_are_bounded(bandwidth):
    tier = Ticking(500 * MIB, bandwidth, bandwidth)
    with Arena(200 * MIB) as arena:
        measure_link(tier, arena.memory, clock=tier.clock)
    assert tier.seconds <= 3
    assert sum(nbytes for _, _, nbytes in tier.moves) <= (64 + 4 * (96 + 8)) * MIB
    assert max(address + nbytes for _, address, nbytes in tier.moves) <= 64 * MIB


def test_a_direction_is_measured_over_many_transfers_where_time_allows():
    tier = Ticking(500 * MIB, 1e9, 1e9)
    with Arena(200 * MIB) as arena:
        measure_link(tier, arena.memory, clock=tier.clock)
    directions = [direction for direction, _, _ in tier.moves]
    first_read, last_write = directions.index("inward"), len(directions) - directions[::-1].index("out")
    assert directions[: first_read - 1].count("out") >= 16
    assert directions[first_read:last_write].count("inward") >= 8


def test_the_memory_is_unchanged_and_the_figures_are_below_the_link():
    data = np.random.default_rng(0).integers(0, 256, 2 * MIB, np.uint8)
    before = data.copy()
    with HostTier(MIB, link=(50e6, 80e6)) as tier:
        found = measure_link(tier, data, seconds=0.1)
    assert (data == before).all()
    assert 0 < found.out <= 50e6
    assert 0 < found.inward <= 80e6
    assert 0 < found.out_together <= 50e6
    assert 0 < found.inward_together <= 80e6


def test_a_disk_is_measured(tmp_path: Path):
    with Arena(4 * MIB) as arena, DiskTier(tmp_path, 4 * MIB) as tier:
        found = measure_link(tier, arena.view(0, 4 * MIB), seconds=0.1)
        assert min(found.out, found.inward, found.out_together, found.inward_together) > 0


class Shared:
    """A computation and a tier on one clock: it stands at the one or the other, as if they took turns at one core."""

    def __init__(self, tier, seconds):
        self._tier, self._seconds = tier, seconds
        self.pieces = 0

    def __call__(self):
        self.pieces += 1
        with self._tier._lock:
            self._tier.seconds += self._seconds
        return self._seconds


def test_a_computation_that_shares_its_time_with_transfers_loses_what_they_take():
    """The clock is all the time there is: what a transfer takes of it, the computation loses, and vice versa."""
    tier = Ticking(500 * MIB, 1e8, 2e8)
    with Arena(200 * MIB) as arena:
        work = Shared(tier, 0.001)
        found = measure_link(tier, arena.memory, work, clock=tier.clock)
    assert work.pieces > 10
    assert 0 < found.contention < 1
    assert 0 < found.out_beside <= 1e8 * 1.001
    assert 0 < found.inward_beside <= 2e8 * 1.001


def test_a_computation_that_is_not_slowed_loses_nothing():
    """It is as fast beside the transfers as alone: 1 ms a piece by a clock that is its own."""
    data = np.zeros(2 * MIB, np.uint8)

    def work():
        time.sleep(0.002)
        return 0.002

    with HostTier(MIB, link=(50e6, 50e6)) as tier:
        found = measure_link(tier, data, work, seconds=0.4)
    assert found.contention < 0.5  # what a loaded machine adds falls on both alike
    assert 0 < found.out_beside <= 50e6
    assert 0 < found.inward_beside <= 50e6


@pytest.mark.parametrize("amount", [0.0, 1e-9, 1e9])
def test_the_unit_of_the_work_does_not_matter_and_work_of_nothing_ends(amount):
    with HostTier(MIB, link=(50e6, 50e6)) as tier:
        found = measure_link(tier, np.zeros(MIB, np.uint8), lambda: amount, seconds=0.05)
    assert 0 <= found.contention < 1


def test_too_few_bytes_cannot_be_measured():
    with HostTier(4096) as tier, pytest.raises(ConfigError, match="at least"):
        measure_link(tier, np.zeros(MIB, np.uint8))
