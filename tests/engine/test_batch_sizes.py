"""Batches of other sizes than the full one: within its least budget, in bounded memory, to the same bits."""

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine import session
from bathyal.engine.bound_programs import MOST_PROGRAMS
from bathyal.engine.programs import Mode
from bathyal.scheduler.fewer_images import follow_plan
from tests.support.random_networks import random_network

FULL = (8, 3, 8, 8)
STRATEGIES = ("stream", "chain", "auto", "offload", "superneurons", "sequential:2")


def batch(images, classes=7, shape=FULL):
    rng = np.random.default_rng(images)
    return rng.normal(size=(images, *shape[1:])).astype(np.float32), np.arange(images) % classes


def make(network, strategy, memory, device, shape=FULL):
    link = {"link": "600 MB"} if strategy in ("stream", "auto", "offload", "superneurons") else {}
    return bt.Trainer(
        network, shape, strategy=strategy, memory=memory, device=device, costs="analytic", kernels="fixed", **link
    )


def run_all_sizes(trainer, sizes, classes=7, shape=FULL):
    """Train on every size, evaluate and predict; return the losses and the outputs."""
    losses = [trainer.train_step(*batch(images, classes, shape)).loss for images in sizes]
    x, y = batch(shape[0], classes, shape)
    return losses, [trainer.evaluate([(x, y)]).loss, *trainer.predict(x).reshape(-1)]


def find_least(network, strategy, device, shape=FULL):
    """Return the least budget that a refusal names."""
    with make(network, strategy, 2**12, device, shape) as trainer, pytest.raises(bt.BudgetError) as refusal:
        trainer.plan  # noqa: B018
    return refusal.value.least_bytes


def find_sizes(network, shape=FULL):
    """List the sizes of batches that the network can train on: with one image a batch norm may see one value."""
    sizes = []
    for images in (shape[0], 7, 3, 2, 1):
        with make(network, "keep", "64 MiB", "null", shape) as trainer:
            try:
                trainer.train_step(*batch(images, shape=shape))
            except bt.ShapeError:
                continue
            sizes.append(images)
    return sizes


@pytest.mark.parametrize("device", ["reference", "onednn"])
@pytest.mark.parametrize("seed", range(3))
def test_the_least_budget_is_enough_for_every_smaller_batch_and_changes_no_bit(seed, device):
    """`stream` refused 2 images of ResNet-18 in the least budget that it had told for 16."""
    network = random_network(seed)
    sizes = find_sizes(network)
    with make(network, "keep", "64 MiB", device) as trainer:
        expected = run_all_sizes(trainer, sizes)
    for strategy in STRATEGIES[seed % 3 :: 3]:
        least = find_least(network, strategy, device)
        with make(network, strategy, least, device) as trainer:
            found = run_all_sizes(trainer, sizes)
            assert trainer.arena_bytes <= least
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1], expected[1], rtol=2e-4, atol=2e-5)  # in parts sums have another order


def test_what_no_longer_pays_to_move_is_moved_as_in_the_full_batch():
    shape = (16, 3, 32, 32)
    network = bt.models.resnet18(classes=10)
    least = find_least(network, "stream", "reference", shape)
    with make(network, "stream", least, "reference", shape) as trainer:
        trainer.train_step(*batch(16, 10, shape))
        trainer.train_step(*batch(2, 10, shape))
        full, short = (trainer._session.program(Mode.TRAINING, images)[0] for images in (16, 2))
        assert len(short.plan.steps) == len(full.plan.steps)
        assert short.plan.peak_bytes <= least
        assert 0 < short.plan.offloaded_bytes <= full.plan.offloaded_bytes


def test_a_plan_is_not_followed_by_another_network():
    def planned(network):
        with make(network, "chain", "1 MiB", "null") as trainer:
            return trainer._session.problem, trainer.planned

    problem, _ = planned(random_network(0))
    _, other = planned(random_network(1))
    assert follow_plan(problem, other.plan, other.graph) is None


class TestPrograms:
    """At most a handful is bound."""

    def test_many_sizes_keep_few_programs(self):
        with make(random_network(3), "chain", "4 MiB", "onednn") as trainer:
            for images in (8, 7, 6, 5, 4, 3, 2, 8, 2, 7):
                trainer.train_step(*batch(images))
                trainer.predict(batch(images)[0])
                programs = trainer._session._programs
                assert len(programs) <= MOST_PROGRAMS
                assert programs.find((Mode.TRAINING, 8)) is not None
                graphs = [planned.graph for planned, _ in programs._programs.values()]
                signatures = {graph.signature(op) for graph in graphs for op in graph.ops}
                assert len(trainer._session.backend._launches) <= 2 * len(signatures)  # some run again in another way
                assert len(trainer._session.backend._kernels) <= 2 * len(signatures)

    def test_those_that_left_come_back_to_the_same_bits(self, monkeypatch):
        sizes = (8, 7, 6, 5, 8, 7, 6, 5)
        found = []
        for most in (MOST_PROGRAMS, 100):
            monkeypatch.setattr("bathyal.engine.bound_programs.MOST_PROGRAMS", most)
            with make(random_network(3), "chain", "4 MiB", "onednn") as trainer:
                found.append([trainer.train_step(*batch(images)).loss for images in sizes])
        assert found[0] == found[1]

    def test_a_checkpoint_names_the_kernels_of_those_that_left_too(self):
        with make(random_network(3), "chain", "4 MiB", "onednn") as trainer:
            for images in range(8, 1, -1):
                trainer.train_step(*batch(images))
            known = trainer._session.list_kernels()
        assert sorted(known) == sorted(f"training {images}" for images in range(2, 9))
        assert session.name_program(Mode.TRAINING, 2) in known
