"""Everything that can be added from outside the package, at once: layers, an optimizer, a loss and a strategy.

A network with layers of its own is trained by an optimizer with two slots on a loss with float targets, planned by a
strategy from outside, within a budget in which its tensors do not fit: with transfers to a file, a checkpoint, and a
second trainer that goes on from it.
"""

import numpy as np
import pytest

import bathyal as bt
from tests.support.own_layers import ChannelScale, Swish, register_own_layers
from tests.support.own_strategies import MOVE, RECOMPUTE, register_strategies
from tests.support.own_training import Adam, MeanSquaredError, register_own_training

SHAPE = (6, 3, 12, 12)
STEPS = 5


@pytest.fixture(scope="module", autouse=True)
def additions():
    with register_own_layers(), register_own_training(), register_strategies(MOVE, RECOMPUTE):
        yield


def network():
    return bt.Sequential(
        bt.Conv2d(10, 3, padding=1),
        bt.BatchNorm2d(),
        ChannelScale(),
        Swish(1.5),
        bt.Residual(bt.Sequential(bt.Conv2d(10, 3, padding=1), Swish(), bt.Dropout(0.2), bt.Conv2d(10, 1))),
        bt.Conv2d(6, 3),
        Swish(0.5),
        bt.Flatten(),
        bt.Linear(4),
    )


def batches():
    """The same batch at every step, so that the loss falls."""
    rng = np.random.default_rng(3)
    return [(rng.standard_normal(SHAPE).astype(np.float32), rng.standard_normal((6, 4)).astype(np.float32))] * STEPS


def make_trainer(device, strategy, memory, folder):
    return bt.Trainer(
        network(),
        SHAPE,
        optimizer=Adam(2e-3),
        loss=MeanSquaredError(),
        strategy=strategy,
        memory=memory,
        device=device,
        kernels="fixed",
        costs="analytic",
        link="400 MB" if strategy != "keep" else None,
        spill_dir=folder,
    )


def train(device, strategy, memory, folder):
    """Digest of the weights, losses, and the trainer's plan."""
    with make_trainer(device, strategy, memory, folder) as trainer:
        losses = [trainer.train_step(*batch).loss for batch in batches()]
        return trainer.state.weights_sha256(), losses, trainer.plan


@pytest.mark.parametrize("device", ["reference", "onednn"])
@pytest.mark.parametrize("strategy", ["own-move-activations", "own-recompute-cheap", "stream"])
def test_all_of_them_train_together_within_a_budget_and_go_on_from_a_checkpoint(device, strategy, tmp_path):
    weights, losses, kept = train(device, "keep", "64 MiB", tmp_path)
    least = train(device, strategy, "64 MiB", tmp_path)[2].min_budget_bytes
    assert least < 0.75 * kept.peak_bytes
    found, found_losses, plan = train(device, strategy, least, tmp_path)
    assert (found, found_losses) == (weights, losses)
    assert losses[-1] < losses[0]
    if strategy == "own-recompute-cheap":
        assert plan.recomputed_ops and not plan.offloaded_bytes
    else:
        assert plan.offloaded_bytes and plan.fetched_bytes

    with make_trainer(device, strategy, least, tmp_path) as trainer:
        for batch in batches()[:2]:
            trainer.train_step(*batch)
        trainer.save(tmp_path / "checkpoints")
        evaluation = trainer.evaluate(batches())
    with make_trainer(device, strategy, least, tmp_path) as trainer:
        assert trainer.restore(tmp_path / "checkpoints")
        assert trainer.evaluate(batches()).loss == evaluation.loss
        assert trainer.predict(batches()[0][0][:3]).shape == (3, 4)
        assert {n.rsplit(".", 1)[1] for n in trainer.state.names(bt.layers.Role.OPTIMIZER)} == {"exp_avg", "exp_avg_sq"}
        rest = [trainer.train_step(*batch).loss for batch in batches()[2:]]
        assert (trainer.state.weights_sha256(), rest) == (weights, losses[2:])
