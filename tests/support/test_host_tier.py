import threading
import time

import numpy as np
import pytest

from bathyal.memory.arena import Arena
from bathyal.memory.errors import BudgetError, ConfigError, PlanError
from bathyal.memory.tiers.tier import align_to_tier
from tests.support.host_tier import HostTier

MIB = 2**20


def noise(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def test_bytes_come_back():
    with HostTier(3 * 4096) as tier:
        first, second = noise(4096), noise(5000, 1)
        tier.write(0, first)
        tier.write(4096, second)
        for address, expected in ((4096, second), (0, first)):
            target = np.zeros_like(expected)
            tier.read(address, target)
            assert (target == expected).all()


@pytest.mark.parametrize(
    ("address", "nbytes"), [(-4096, 1), (0, 3 * 4096 + 1), (3 * 4096, 1), (8192, 4097), (2**62, 1)]
)
def test_ranges_outside_are_refused(address, nbytes):
    with HostTier(3 * 4096) as tier:
        for move in (tier.write, tier.read):
            with pytest.raises(PlanError, match="'host'") as caught:
                move(address, np.zeros(nbytes, np.uint8))
            assert str(address) in caught.value.actual


def test_addresses_are_multiples_of_a_page_and_nothing_is_a_transfer_too():
    with HostTier(8192) as tier:
        with pytest.raises(PlanError, match="4096"):
            tier.write(64, noise(64))
        tier.write(8192, noise(0))
    assert [align_to_tier(nbytes) for nbytes in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]


def test_it_grows_and_keeps_what_is_there():
    with HostTier(4096, free=lambda: 3 * 4096) as tier:
        tier.write(0, noise(4096))
        tier.grow(100)  # it is larger already
        assert tier.nbytes == 4096
        tier.grow(2 * 4096)
        tier.write(4096, noise(4096, 1))
        with pytest.raises(BudgetError):
            tier.grow(4 * 4096)
        for address, seed in ((0, 0), (4096, 1)):
            target = np.zeros(4096, np.uint8)
            tier.read(address, target)
            assert (target == noise(4096, seed)).all()


def test_memory_that_is_not_there_is_refused():
    with pytest.raises(BudgetError, match="tier 'host'") as caught:
        HostTier(2 * MIB, free=lambda: MIB)
    assert str(2 * MIB) in caught.value.expected
    assert str(MIB) in caught.value.actual
    with pytest.raises(BudgetError):
        HostTier(0)


def test_its_memory_is_resident_from_the_start():
    asked = []
    with HostTier(130 * MIB, free=lambda: asked.append(0) or 2**40) as tier:
        assert len(asked) > 2, "the arena asks before each slice that it touches"
        assert tier.nbytes == 130 * MIB


@pytest.mark.parametrize("link", [(0, 1), (1, -1), (float("nan"), 1)])
def test_a_link_needs_a_bandwidth(link):
    with pytest.raises(ConfigError, match="bytes per second"):
        HostTier(4096, link=link)


def test_a_link_takes_its_time_in_each_direction_and_serves_one_transfer_at_a_time():
    data = noise(MIB)
    with HostTier(MIB, link=(20 * MIB, 50 * MIB)) as tier:
        for move, least in ((tier.write, 1 / 20), (tier.read, 1 / 50)):
            begin = time.monotonic()
            threads = [threading.Thread(target=move, args=(0, data)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert time.monotonic() - begin >= 2 * least


def test_a_closed_tier_moves_nothing_and_closes_twice():
    tier = HostTier(4096)
    tier.close()
    tier.close()
    with pytest.raises(PlanError):
        tier.write(0, noise(64))


def test_it_moves_an_arena_view_in_place():
    with Arena(8192) as arena, HostTier(8192) as tier:
        arena.memory[:] = noise(8192)
        before = arena.memory.copy()
        tier.write(0, arena.view(0, 8192))
        arena.memory[:] = 0
        tier.read(0, arena.view(0, 8192))
        assert (arena.memory == before).all()
