"""What a step tells: bytes that moved, seconds waited, and how far it is while it runs."""

import itertools

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.results import StepResult, hidden_share
from tests.support.host_tier import HostTier

MEMORY = 3500 * 1024
SHAPE = (4, 3, 16, 16)
NETWORK = bt.Sequential(
    *[layer for _ in range(9) for layer in (bt.Conv2d(64, 3, padding=1), bt.ReLU())],
    bt.GlobalAvgPool2d(),
    bt.Flatten(),
    bt.Linear(5),
)


def trainer(memory, strategy, **options):
    return bt.Trainer(
        NETWORK, SHAPE, memory=memory, strategy=strategy, kernels="fixed", device="reference", costs="analytic",
        threads=1, **options,
    )  # fmt: skip


def data():
    return bt.Synthetic(SHAPE[1:], 5, SHAPE[0], 3)


def test_a_step_that_moves_bytes_says_how_many_and_for_how_long():
    rate = 50e6
    with trainer(MEMORY, "offload", link="50 MB", make_tier=lambda n: HostTier(n, link=(rate, rate))) as t:
        results = list(t.fit(data()))
        moved = t.plan.offloaded_bytes + t.plan.fetched_bytes
        assert moved > 0
        for result in results:
            assert result.moved_bytes == moved
            assert result.moving_seconds >= 0.9 * moved / rate
            assert 0 <= result.waited_seconds <= result.seconds
            assert 0 <= result.hidden_share <= 1


def test_a_step_that_moves_nothing_says_so():
    with trainer("16 MiB", "liveness") as t:
        result = next(t.fit(data()))
    assert (result.moved_bytes, result.moving_seconds, result.waited_seconds) == (0, 0.0, 0.0)
    assert result.hidden_share is None


@pytest.mark.parametrize(
    ("waited", "moving", "share"), [(0.0, 2.0, 1.0), (1.0, 4.0, 0.75), (3.0, 2.0, 0.0), (0.0, 0.0, None)]
)
def test_the_hidden_share_is_what_was_not_waited_for(waited, moving, share):
    assert hidden_share(waited, moving) == share
    assert StepResult(1, 0, 1, 1.0, {}, 9.0, 1, moving, waited).hidden_share == share


def test_a_step_tells_how_far_it_is_and_computes_the_same():
    told = []
    with trainer("16 MiB", "liveness") as t:
        results = list(t.fit(data(), watch=lambda done, total: told.append((done, total))))
        steps, watched = len(t.plan.steps), t.state.weights_sha256()
    with trainer("16 MiB", "liveness") as t:
        assert [r.loss for r in t.fit(data())] == [r.loss for r in results]
        assert t.state.weights_sha256() == watched
    assert {total for _, total in told} == {steps}
    starts = [i for i, (done, _) in enumerate(told) if done == 0]
    assert len(starts) == len(results)
    for first, end in itertools.zip_longest(starts, starts[1:]):
        done = [d for d, _ in told[first:end]]
        assert done == sorted(set(done)), "further with every report"
        assert done[-1] == steps
        assert len(done) <= 258, "cheap, however many steps a plan has"


def test_a_single_step_can_be_watched():
    told = []
    images, labels = np.zeros(SHAPE, np.float32), np.zeros(4, np.int64)
    with trainer("16 MiB", "liveness") as t:
        t.train_step(images, labels, watch=lambda done, total: told.append(done))
        assert told[-1] == len(t.plan.steps)


def test_a_plan_stays_within_the_size_of_the_spill_folder():
    """A folder too small for the fastest plan gets one that fits it."""
    with trainer(MEMORY, "superneurons:lru", link="50 GB") as t:
        outside = t.plan.outside_bytes
    with trainer(MEMORY, "superneurons:lru", link="50 GB", spill_size=outside - 1) as t:
        assert 0 < t.plan.outside_bytes < outside
        t.train_step(np.zeros(SHAPE, np.float32), np.zeros(4, np.int64))
