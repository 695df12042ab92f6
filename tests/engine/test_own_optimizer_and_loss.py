"""An optimizer and losses from outside the package: against PyTorch, under a budget, moved out, saved and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import bathyal as bt
from bathyal.engine import programs
from bathyal.engine.checkpoints import folder as checkpoint
from bathyal.layers.graph import Role
from bathyal.layers.kinds import KINDS
from bathyal.layers.slabs import split_large
from bathyal.scheduler.strategies.names import STRATEGIES
from tests.support.host_tier import HostTier
from tests.support.own_training import Adam, Huber, MeanOutput, MeanSquaredError, register_own_training
from tests.support.spilling import needs_link

SHAPE = (4, 3, 8, 8)
FEATURES = 6
BACKENDS = ("reference", "onednn")
Array = npt.NDArray[Any]


@pytest.fixture(scope="module", autouse=True)
def own_operations() -> Iterator[None]:
    with register_own_training():
        yield


@pytest.fixture(autouse=True)
def any_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest's folder may be in memory."""
    monkeypatch.setattr("bathyal.memory.tiers.spill_folder.memory_file_system", lambda folder: "")


def network(act: Any = bt.Tanh) -> bt.Sequential:
    """20 channels, which oneDNN pads to 32, and a layer of 320 KiB, whose state moves."""
    return bt.Sequential(
        bt.Conv2d(20, 3, padding=1, bias=False, name="conv1"),
        bt.BatchNorm2d(name="bn"),
        act(),
        bt.Conv2d(20, 3, padding=1, name="conv2"),
        act(),
        bt.Flatten(),
        bt.Linear(64, name="fc"),
        act(),
        bt.Linear(FEATURES, name="out"),
    )


def trainer(**choices: Any) -> bt.Trainer:
    given: dict[str, Any] = {
        "optimizer": Adam(0.01),
        "loss": MeanSquaredError(),
        "memory": "16 MiB",
        "costs": "analytic",
        "kernels": "fixed",
        "device": "reference",
        "threads": 1,
    }
    return bt.Trainer(choices.pop("network", None) or network(), SHAPE, **{**given, **choices})


def batches(count: int = 4, shape: tuple[int, ...] = (FEATURES,)) -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(3)
    sizes = [SHAPE[0]] * (count - 1) + [SHAPE[0] - 1]
    return [(rng.normal(size=(n, *SHAPE[1:])), rng.normal(size=(n, *shape))) for n in sizes]


def state_of(t: bt.Trainer) -> dict[str, Array]:
    return {name: t.state.read(name).copy() for name in t.state.tensors}


def trained(epochs: int = 2, given: list[tuple[Array, Array]] | None = None, **choices: Any) -> dict[str, Array]:
    """State after training, with the losses."""
    with trainer(**choices) as t:
        losses = [result.loss for result in t.fit(given or batches(), epochs=epochs)]
        return {**state_of(t), "losses": np.array(losses)}


def check_same(left: dict[str, Array], right: dict[str, Array]) -> None:
    assert left.keys() == right.keys()
    for name, values in left.items():
        np.testing.assert_array_equal(values, right[name], err_msg=name)


class Peer:
    """The same network by PyTorch's own modules, in float64."""

    def __init__(self, t: bt.Trainer, loss: str, **options: Any) -> None:
        self.torch = torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
        nn = torch.nn
        self.module = nn.Sequential(
            nn.Conv2d(3, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20), nn.Tanh(), nn.Conv2d(20, 20, 3, padding=1),
            nn.Tanh(), nn.Flatten(), nn.Linear(20 * 64, 64), nn.Tanh(), nn.Linear(64, FEATURES),
        ).double()  # fmt: skip
        parameters = list(t.state.names(Role.PARAMETER))
        self.named = dict(zip(parameters, self.module.parameters(), strict=True))
        for name, parameter in self.named.items():
            parameter.data = torch.tensor(t.state.read(name), dtype=torch.float64)
        self.loss = getattr(torch.nn, loss)(**options)
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=0.01, betas=(0.8, 0.95), eps=1e-6)

    def step(self, images: Array, targets: Array) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(self.module(self.torch.tensor(images)), self.torch.tensor(targets))
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


def close(found: Array, right: Any, relative: float) -> None:
    values = np.asarray(right)
    assert np.abs(found - values).max() <= relative * np.abs(values).max()


@pytest.mark.parametrize(
    ("loss", "peer", "options"),
    [(MeanSquaredError(), "MSELoss", {}), (Huber(0.7), "HuberLoss", {"delta": 0.7})],
    ids=["squared error", "huber"],
)
def test_adam_and_the_losses_are_those_of_pytorch(loss: Any, peer: str, options: dict[str, Any]) -> None:
    optimizer = Adam(0.01, (0.8, 0.95), 1e-6)
    with trainer(optimizer=optimizer, loss=loss, dtype="float64", memory="64 MiB") as t:
        right = Peer(t, peer, **options)
        for step, (images, targets) in enumerate(batches()):
            found = t.train_step(images, targets).loss
            assert found == pytest.approx(right.step(images, targets), rel=1e-12), step
        for name, parameter in right.named.items():
            close(t.state.read(name), parameter.detach(), 1e-12)
            for slot in optimizer.slots:
                close(t.state.read(f"{name}.{slot}"), right.optimizer.state[parameter][slot], 1e-12)
        right.module.eval()
        images, targets = (np.concatenate(part) for part in zip(*batches(), strict=True))
        with right.torch.no_grad():
            outputs = right.module(right.torch.tensor(images))
            held_out = right.loss(outputs, right.torch.tensor(targets))
        close(t.predict(images), outputs, 1e-11)
        evaluation = t.evaluate(batches())
        assert evaluation.loss == pytest.approx(float(held_out), rel=1e-11)
        assert evaluation.images == len(images)


def test_metrics_are_those_that_the_loss_counts() -> None:
    with trainer(loss=Huber(0.9)) as t:
        for images, targets in batches():
            outputs = t.predict(images)
            found = t.evaluate([(images, targets)])
            close_ones = (np.abs(outputs - targets) <= 0.9).all(axis=1).mean()
            assert found.metrics == {"close": pytest.approx(close_ones)}
            result = t.train_step(images, targets)
            assert list(result.metrics) == ["close"] and 0 <= result.metrics["close"] <= 1
            assert (result.top1, result.top5, found.top1, found.top5) == (None,) * 4
        assert t.classes == 0 and t.target == bt.Target((4, FEATURES), "float32")
    with trainer() as t:
        assert t.train_step(*batches()[0]).metrics == {} == t.evaluate(batches()).metrics


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loss", [MeanSquaredError(), Huber(0.7)], ids=["squared error", "huber"])
def test_every_strategy_at_its_least_budget_gives_the_same_bits(backend: str, loss: Any) -> None:
    right = trained(device=backend, loss=loss, strategy="keep")
    for strategy in STRATEGIES:
        moving = {"link": "500 MB", "make_tier": HostTier} if needs_link(strategy) else {}
        choices = {"device": backend, "loss": loss, "strategy": strategy, **moving}
        with trainer(**choices) as t:
            least = t.plan.min_budget_bytes
        check_same(trained(memory=least, **choices), right)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_move_out_to_a_disk_and_slabs_have_slots(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "split_large", partial(split_large, limit_bytes=2**17))
    right = trained(device=backend)
    choices = {"device": backend, "strategy": "stream", "link": "500 MB", "spill_dir": str(tmp_path)}
    with trainer(**choices) as t:
        least = t.plan.min_budget_bytes
    with trainer(**choices, memory=least) as t:
        losses = [result.loss for result in t.fit(batches(), epochs=2)]
        outside = {t.planned.graph.tensors[copy.tensor].name for copy in t.plan.copies if copy.tensor >= 0}
        assert {"fc.weight[0:22].exp_avg", "fc.weight[0:22].exp_avg_sq"} <= outside
        assert t.state.tensors["fc.weight.exp_avg_sq"].shape == (64, 1280)
        check_same({**state_of(t), "losses": np.array(losses)}, right)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_resumed_run_ends_with_the_same_bits(backend: str, tmp_path: Path) -> None:
    with trainer(device=backend) as t:
        list(t.fit(batches(), epochs=3))
        whole = state_of(t)
        sha256 = t.state.weights_sha256()
    with trainer(device=backend) as t:
        list(t.fit(batches(), epochs=2, steps=6))
        t.save(tmp_path)
    with trainer(device=backend, strategy="chain", memory="4 MiB") as t:
        assert t.restore(tmp_path)
        results = list(t.fit(batches(), epochs=3))
        assert results[0].step == 7
        check_same(state_of(t), whole)
        assert t.state.weights_sha256() == sha256
        assert any(np.abs(values).max() > 0 for name, values in whole.items() if name.endswith(".exp_avg"))


def test_padding_of_blocked_layouts_stays_zero() -> None:
    with trainer(device="onednn") as t:
        list(t.fit(batches()))
        tensor = next(x for x in t.planned.graph.tensors if x.name == "conv2.weight.exp_avg_sq")
        assert tensor.layout and tensor.nbytes > tensor.spec.nbytes, "the case needs a padded layout"
        for name in ("conv2.weight", "conv2.weight.exp_avg", "conv2.weight.exp_avg_sq"):
            lowered = next(x for x in t.planned.graph.tensors if x.name == name)
            content = t.state._get(lowered)
            assert np.count_nonzero(content.view(np.float32)) == np.count_nonzero(t.state.read(name))


def test_backends_agree() -> None:
    found, right = trained(device="onednn"), trained()
    for name, values in right.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_of_images_plans_and_trains(backend: str) -> None:
    """The output of 20 channels is blocked where oneDNN computes; the loss and its gradient are of plain images."""
    images = bt.Sequential(bt.Conv2d(20, 3, padding=1), bt.ReLU(), bt.Conv2d(20, 3, padding=1))
    given = batches(3, (20, *SHAPE[2:]))
    right = trained(given=given, network=images, device=backend, strategy="keep")
    for strategy in ("chain", "offload", "superneurons", "stream"):
        moving = {"link": "500 MB", "make_tier": HostTier} if needs_link(strategy) else {}
        choices = {"network": images, "device": backend, "strategy": strategy, **moving}
        with trainer(**choices) as t:
            least = t.plan.min_budget_bytes
        check_same(trained(given=given, memory=least, **choices), right)
    with trainer(network=images, device=backend) as t:
        outputs = t.predict(given[0][0])
        assert outputs.shape == given[0][1].shape
        assert t.evaluate(given[:1]).loss == pytest.approx(((outputs - given[0][1]) ** 2).mean(), rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loss_whose_gradient_reads_neither_output_nor_target(backend: str, strategy: str) -> None:
    moving = {"link": "500 MB", "make_tier": HostTier} if needs_link(strategy) else {}
    given = [(images, np.zeros(len(images), np.int16)) for images, _ in batches(2)[:1]] * 3
    choices = {"loss": MeanOutput(), "device": backend, "optimizer": bt.SGD(0.1)}
    with trainer(**choices, strategy=strategy, **moving) as t:
        least = t.plan.min_budget_bytes
    found = trained(1, given, **choices, strategy=strategy, memory=least, **moving)
    assert found["losses"][2] < found["losses"][1] < found["losses"][0]
    check_same(found, trained(1, given, **choices, strategy="keep"))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.zeros((4, 5)), r"batch 0, targets: expected shape \(4, 6\), a target for each image, got shape \(4, 5\)"),
        (np.zeros(4, int), r"expected shape \(4, 6\), .*got shape \(4,\)"),
        (np.full((4, 6), np.inf), "batch 0, target 0: expected finite values, got inf"),
        ([[0.0] * 6] * 4, "batch 0, targets: expected a numpy array, got a list"),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets: Any, message: str) -> None:
    with trainer() as t:
        before = t.state.weights_sha256()
        with pytest.raises(bt.DataError, match=message):
            t.train_step(batches()[0][0], targets)
        with pytest.raises(bt.DataError, match=message):
            t.evaluate([(batches()[0][0], targets)])
        assert t.state.weights_sha256() == before and t.step == 0


def test_an_output_that_the_loss_does_not_take_is_refused() -> None:
    with trainer(network=bt.Sequential(bt.Conv2d(4, 3)), loss=Huber()) as t:
        with pytest.raises(bt.ShapeError, match=r"loss: expected an output of shape \(N, features\), got .*Flatten"):
            _ = t.plan
        with pytest.raises(bt.ShapeError, match="loss: expected an output"):
            t.train_step(*batches()[0])


def test_a_schedule_reaches_the_step_scalars() -> None:
    """At a rate of 0 nothing moves but the slots."""
    with trainer(learning_rate=lambda step: 0.0 if step < 2 else 0.01) as t:
        before = state_of(t)
        list(t.fit(batches(), steps=2))
        after = state_of(t)
        for name in t.state.names(Role.PARAMETER):
            np.testing.assert_array_equal(before[name], after[name])
        assert np.abs(after["fc.weight.exp_avg_sq"]).max() > 0
        list(t.fit(batches(), steps=3))
        assert not np.array_equal(t.state.read("fc.weight"), before["fc.weight"])


def test_a_step_scalar_that_is_not_finite_changes_nothing() -> None:
    class Broken(Adam):
        def step_scalars(self, step: int, learning_rate: float) -> dict[str, float]:
            return {"step_size": 1.0 if step == 1 else float("nan"), "root": 1.0}

    with trainer(optimizer=Broken()) as t:
        t.train_step(*batches()[0])
        before = t.state.weights_sha256()
        with pytest.raises(bt.ConfigError, match="Broken, step 2: expected a finite 'step_size', got nan"):
            t.train_step(*batches()[1])
        assert t.state.weights_sha256() == before and t.step == 1


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"optimizer": bt.SGD(0.1)}, "optimizer .*'sgd_update'.*, got .*'own_adam_update'"),
        ({"optimizer": Adam(0.01, (0.5, 0.999))}, r"optimizer .*\[0.5, 0.999\].*, got .*\[0.9, 0.999\]"),
        ({"loss": Huber()}, "loss .*'own_huber'.*'delta': 1.0.*, got .*'own_squared_error'"),
        ({"loss": bt.CrossEntropy()}, "loss .*'softmax_cross_entropy'.*, got .*'own_squared_error'"),
    ],
)
def test_a_checkpoint_of_another_optimizer_or_loss_is_refused(
    choices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with trainer() as t:
        t.save(tmp_path)
    with trainer(**choices) as t, pytest.raises(bt.CheckpointError, match=message):
        t.restore(tmp_path)


def test_headers_of_sgd_and_cross_entropy_are_as_before_there_was_a_choice(tmp_path: Path) -> None:
    choices = {"optimizer": bt.SGD(0.1, momentum=0.9), "loss": bt.CrossEntropy()}
    with trainer(**choices) as t:
        t.save(tmp_path)
    found, _ = checkpoint.find_newest(tmp_path)
    assert found is not None
    assert found.header["optimizer"] == {"momentum": 0.9, "weight_decay": 0.0, "nesterov": False}
    assert "loss" not in found.header
    with trainer(**choices) as t:
        assert t.restore(tmp_path)
    message = r"optimizer .*'own_adam_update'.*, got .*'sgd_update'"
    with trainer(loss=bt.CrossEntropy()) as t, pytest.raises(bt.CheckpointError, match=message):
        t.restore(tmp_path)


class NoSlots:
    """What is no optimizer: it lacks slots and step scalars."""

    kind = "own_adam_update"
    attrs: dict[str, object] = {}  # noqa: RUF012 - read only
    learning_rate = 0.1


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"optimizer": NoSlots()}, "optimizer: .*without slots, step_scalars"),
        ({"optimizer": Adam}, "optimizer: .*Call the class"),
        ({"optimizer": MeanSquaredError()}, "optimizer: .*without learning_rate, slots, step_scalars"),
        ({"loss": Adam()}, "loss: .*without metrics, target, gradient"),
        ({"loss": "mse"}, "loss: .*'mse' without kind"),
    ],
)
def test_the_constructor_says_what_is_missing(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(bt.ConfigError, match=message):
        trainer(**choices)


def test_an_operation_that_is_not_registered_is_refused_in_the_constructor() -> None:
    optimizer = type("Other", (Adam,), {"kind": "other_update"})()
    loss = type("Other", (MeanSquaredError,), {"kind": "other_loss"})()
    for choices in ({"optimizer": optimizer}, {"loss": loss}):
        with pytest.raises(
            bt.ConfigError, match=r"kind: .*registered kind of operation, got 'other_.*register_operation"
        ):
            trainer(**choices)


DOCUMENTED = {"Add an optimizer.": ("adagrad_update",), "Add a loss.": ("absolute_error", "absolute_error_backward")}


def documented(title: str) -> dict[str, Any]:
    """What the example under a title of CONTRIBUTING.md defines."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    block = text.partition(f"**{title}**")[2].partition("```python\n")[2].partition("```")[0]
    forget(title)
    scope: dict[str, Any] = {"bt": bt, "np": np}
    exec(compile(block, title, "exec"), scope)
    return scope


def forget(title: str) -> None:
    """Take back what an example has registered, here or in a test of the documents."""
    for name in DOCUMENTED[title]:
        if name in KINDS:
            bt.unregister_operation(name)


def test_the_documented_examples_are_adagrad_and_the_mean_absolute_error() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
    try:
        Adagrad, AbsoluteError = (
            documented(title)[name]
            for title, name in (("Add an optimizer.", "Adagrad"), ("Add a loss.", "AbsoluteError"))
        )
        choices = {"optimizer": Adagrad(0.05, decay=0.1), "loss": AbsoluteError(), "dtype": "float64"}
        with trainer(network=bt.Sequential(bt.Flatten(), bt.Linear(FEATURES, name="out")), **choices) as t:
            linear = torch.nn.Linear(3 * 64, FEATURES).double()
            for name, parameter in linear.named_parameters():
                parameter.data = torch.tensor(t.state.read(f"out.{name}"))
            optimizer = torch.optim.Adagrad(linear.parameters(), lr=0.05, lr_decay=0.1)
            for images, targets in batches():
                optimizer.zero_grad()
                loss = torch.nn.L1Loss()(linear(torch.tensor(images).flatten(1)), torch.tensor(targets))
                loss.backward()
                optimizer.step()
                assert t.train_step(images, targets).loss == pytest.approx(loss.item(), rel=1e-12)
            for name, parameter in linear.named_parameters():
                close(t.state.read(f"out.{name}"), parameter.detach(), 1e-12)
    finally:
        for title in DOCUMENTED:
            forget(title)
