"""A run whose numbers are no longer finite ends, says where that began, and leaves the last good checkpoint."""

import numpy as np
import pytest

import bathyal as bt
from bathyal.cli import main
from bathyal.memory.errors import ConfigError, NonFiniteError
from tests.support.host_tier import HostTier
from tests.support.onednn_library import onednn_backend

SHAPE, CLASSES = (4, 3, 8, 8), 5
DEVICES = ("reference", "onednn")


def network():
    return bt.Sequential(
        bt.Conv2d(8, 3, padding=1),
        bt.ReLU(),
        bt.Residual(bt.Sequential(bt.Conv2d(8, 3, padding=1), bt.BatchNorm2d()), activation=bt.ReLU()),
        bt.Dropout(0.2),
        bt.Conv2d(8, 3, padding=1),
        bt.ReLU(),
        bt.MaxPool2d(2),
        bt.Flatten(),
        bt.Linear(CLASSES),
    )


def make_trainer(device, **choices):
    if device == "onednn":
        onednn_backend()
    given = {"optimizer": bt.SGD(0.01, momentum=0.9), "memory": "4 MiB", "costs": "analytic", "kernels": "fixed"}
    return bt.Trainer(network(), SHAPE, device=device, **{**given, **choices})


def draw_batch(seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(SHAPE).astype(np.float32), rng.integers(0, CLASSES, SHAPE[0])


def overwrite(trainer, name, value, place=0):
    values = trainer.state.read(name)
    values.reshape(-1)[place] = value
    trainer.state.write(name, values)


def fail(trainer):
    with pytest.raises(NonFiniteError) as failed:
        trainer.train_step(*draw_batch(1))
    return failed.value


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "layer"), [("0.weight", "0 (conv2d)"), ("2.0.weight", "2.0 (conv2d)"), ("8.bias", "loss")]
)
def test_the_first_layer_that_is_not_finite_is_named(device, name, layer):
    """Finite weights that are too large: the layer that makes infinities of them comes first, not what follows."""
    with make_trainer(device) as trainer:
        trainer.train_step(*draw_batch())
        values = trainer.state.read(name)
        trainer.state.write(name, np.where(np.arange(values.size).reshape(values.shape) % 2, -3e38, 3e38))
        error = fail(trainer)
        assert error.where == f"step 2, {layer}" or (layer == "loss" and error.where.startswith("step 2, "))
        assert "first of the step" in error.actual
        assert "No checkpoint of this run" in error.hint
        with pytest.raises(ConfigError, match="broke off"):
            trainer.train_step(*draw_batch())


@pytest.mark.parametrize("device", DEVICES)
def test_of_several_parameters_the_one_nearest_to_the_loss_is_named(device):
    """Gradients that are not finite kill all parameters before the layer at which they began."""
    with make_trainer(device) as trainer:
        for name in ("0.weight", "4.weight", "2.0.weight"):
            overwrite(trainer, name, np.nan)
        assert fail(trainer).where == "step 1, 4.weight"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", ["chain", "offload", "stream"])
def test_the_same_layer_is_found_in_little_memory(device, strategy):
    """Where activations are computed again, and where state and activations move, too."""
    tier = {} if strategy == "chain" else {"make_tier": HostTier, "link": "500 MB"}
    with make_trainer(device, strategy=strategy, **tier) as trainer:
        least = trainer.plan.min_budget_bytes
    with make_trainer(device, strategy=strategy, memory=least, **tier) as trainer:
        trainer.train_step(*draw_batch())
        values = trainer.state.read("4.weight")
        trainer.state.write("4.weight", np.full_like(values, 3e38))
        assert fail(trainer).where == "step 2, 4 (conv2d)"


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_of_dead_state_is_not_written(device, tmp_path):
    with make_trainer(device) as trainer:
        trainer.train_step(*draw_batch())
        good = trainer.save(tmp_path, keep=1)
        trainer.train_step(*draw_batch())
        overwrite(trainer, "4.weight.momentum", -np.inf, 7)
        with pytest.raises(NonFiniteError, match=r"step 2, 4.weight.momentum.*1 of"):
            trainer.save(tmp_path, keep=1)
        assert list(tmp_path.iterdir()) == [good]
        trainer.train_step(*draw_batch())  # the momentum makes the weight infinite
        error = fail(trainer)
        assert error.where == "step 4, 4.weight"
        assert str(good) in error.hint
        assert trainer.restore(tmp_path)
        assert trainer.step == 1
        assert np.isfinite(trainer.train_step(*draw_batch()).loss)


def test_a_run_that_diverges_ends_with_an_error_and_good_checkpoints(tmp_path, capsys):
    """Exit status 1; the checkpoint that is left can be gone on from."""
    onednn_backend()
    words = ["train", "small_resnet", "--data", "digits", "--batch", "8", "--memory", "8 MiB", "--costs", "analytic"]
    words += ["--device", "onednn", "--checkpoint", str(tmp_path), "--checkpoint-every", "1", "--json"]
    assert main([*words, "--steps", "8", "--lr", "1e8"]) == 1
    said = capsys.readouterr().err
    assert "expected finite numbers" in said
    kept = sorted(tmp_path.iterdir())
    assert 1 <= len(kept) <= 2
    last = int(kept[-1].name.split("-")[1].split(".")[0])
    assert main([*words, "--steps", str(last), "--lr", "1e-6", "--resume"]) == 0


def test_the_last_update_of_a_run_is_looked_at_where_nothing_is_saved(capsys):
    words = ["train", "small_resnet", "--data", "digits", "--batch", "8", "--memory", "8 MiB", "--costs", "analytic"]
    assert main([*words, "--device", "reference", "--steps", "1", "--lr", "1e38", "--weight-decay", "1e6"]) == 1
    assert "after step 1" in capsys.readouterr().err
