"""A tier that counts: what passes is unchanged, each direction is counted for itself, a failure is not."""

import numpy as np
import pytest

from bathyal.memory.errors import PlanError
from bathyal.memory.tiers.timed import TimedTier, Traffic
from tests.support.host_tier import HostTier


class Clock:
    """Tells a time that each look moves on by one second."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def some(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def test_bytes_pass_and_each_direction_is_counted():
    with TimedTier(HostTier(3 * 4096), Clock()) as tier:
        assert (tier.name, tier.nbytes, tier.traffic) == ("host", 3 * 4096, Traffic())
        content, back = some(4096), np.empty(100, np.uint8)
        tier.write(4096, content)
        tier.write(8192, content)
        tier.read(4096, back)
        assert (back == content[:100]).all()
        assert tier.traffic == Traffic(2 * 4096, 100, 2.0, 1.0)
        assert (tier.traffic.nbytes, tier.traffic.seconds) == (8292, 3.0)


def test_traffic_since_an_earlier_moment():
    tier = TimedTier(HostTier(4096), Clock())
    tier.write(0, some(4096))
    before = tier.traffic
    tier.read(0, np.empty(8, np.uint8))
    assert tier.traffic.since(before) == Traffic(0, 8, 0.0, 1.0)
    tier.close()
    tier.close()


def test_what_fails_is_not_counted():
    with TimedTier(HostTier(4096), Clock()) as tier:
        with pytest.raises(PlanError):
            tier.write(4096, some(1))
        with pytest.raises(PlanError):
            tier.read(1, np.empty(1, np.uint8))
        assert tier.traffic == Traffic()


def test_it_grows_with_its_tier():
    with TimedTier(HostTier(4096)) as tier:
        content, back = some(4096), np.empty(4096, np.uint8)
        tier.write(0, content)
        tier.grow(2 * 4096)
        assert tier.nbytes == 2 * 4096
        tier.read(0, back)
        assert (back == content).all()
