import signal
from dataclasses import replace

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine import session
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.planning.profile import estimate
from bathyal.engine.programs import Mode
from bathyal.scheduler.plan.costs import CostTable

SHAPE = (8, 3, 8, 8)


def network(classes=5):
    return bt.Sequential(
        bt.Conv2d(8, 3, padding=1, bias=False),
        bt.BatchNorm2d(),
        bt.ReLU(),
        bt.Residual(bt.Sequential(bt.Conv2d(8, 3, padding=1), bt.BatchNorm2d(), bt.ReLU(), bt.Dropout(0.2))),
        bt.GlobalAvgPool2d(),
        bt.Flatten(),
        bt.Linear(classes),
        name="small",
    )


def trainer(**choices):
    choices = {"optimizer": bt.SGD(0.1, momentum=0.9), "memory": "4 MiB", "costs": "analytic", **choices}
    return bt.Trainer(network(), SHAPE, **choices)


def data(batches=3, last=8, seed=0):
    rng = np.random.default_rng(seed)
    count = 8 * (batches - 1) + last
    labels = rng.integers(0, 5, count)
    images = rng.normal(size=(count, 3, 8, 8)) + labels[:, None, None, None] * 0.5
    return bt.ArrayDataset(images.astype(np.float32), labels, 8, seed=seed)


def test_training_learns_evaluates_and_predicts():
    with trainer() as t:
        losses = [r.loss for r in t.fit(data(8), epochs=8)]
        assert np.mean(losses[-8:]) < 0.5 * np.mean(losses[:8])
        found = t.evaluate(data(8))
        assert found.images == 64
        assert found.top1 > 0.6
        assert found.top5 == 1.0
        source = data(8)
        assert (t.predict(source.images).argmax(1) == source.labels).mean() == found.top1


def test_a_last_short_batch_trains_in_the_same_arena():
    with trainer(memory="1 MiB") as t:
        results = list(t.fit(data(3, last=3), epochs=2))
        assert sorted(r.images for r in results) == [3, 3, 8, 8, 8, 8]
        assert t.arena_bytes <= 2**20


def test_a_short_batch_is_the_same_step_as_a_plan_of_that_size():
    images, labels = data(1).images[:3], data(1).labels[:3]
    with (
        trainer() as t,
        bt.Trainer(
            network(), (3, *SHAPE[1:]), optimizer=bt.SGD(0.1, momentum=0.9), memory="4 MiB", costs="analytic"
        ) as u,
    ):
        assert t.train_step(images, labels).loss == u.train_step(images, labels).loss
        assert t.state.weights_sha256() == u.state.weights_sha256()


def test_running_statistics_are_updated_once_per_step_under_recomputation():
    keep, tight = trainer(strategy="keep", kernels="fixed"), trainer(strategy="chain", kernels="fixed", memory=10**6)
    least = tight.plan.min_budget_bytes
    tight.close()
    with keep, trainer(strategy="chain", kernels="fixed", memory=least) as tight:
        assert tight.plan.recomputed_ops > 0
        for t in (keep, tight):
            list(t.fit(data(), epochs=2))
        for name in ("1.running_mean", "1.running_var", "3.1.running_mean"):
            assert (keep.state.read(name) == tight.state.read(name)).all()
        assert keep.state.weights_sha256() == tight.state.weights_sha256()


@pytest.mark.parametrize("kernels", ["fixed", "fit"])
def test_save_and_restore_go_on_to_the_bit(tmp_path, kernels):
    with trainer(kernels=kernels) as whole:
        list(whole.fit(data(3, last=5), epochs=4))
        expected = whole.state.weights_sha256()
    with trainer(kernels=kernels) as first:
        for result in first.fit(data(3, last=5), epochs=4):
            if result.step == 5:
                first.save(tmp_path)
                break
    with trainer(kernels=kernels) as second:
        assert second.restore(tmp_path)
        assert (second.step, second.epoch, second.batch) == (5, 1, 2)
        list(second.fit(data(3, last=5), epochs=4))
        assert second.state.weights_sha256() == expected


def test_restore_without_a_checkpoint(tmp_path):
    with trainer() as t:
        assert not t.restore(tmp_path / "nothing")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    with trainer() as t:
        t.train_step(*next(data().epoch(0)))
        t.save(tmp_path)
    with trainer(seed=4) as other, pytest.raises(bt.CheckpointError, match="seed"):
        other.restore(tmp_path)
    with trainer(dtype="float64") as other, pytest.raises(bt.CheckpointError, match="dtype"):
        other.restore(tmp_path)
    smaller = bt.Trainer(network(), (4, *SHAPE[1:]), optimizer=bt.SGD(0.1, momentum=0.9), memory="4 MiB")
    with smaller as other, pytest.raises(bt.CheckpointError, match="input_shape"):
        other.restore(tmp_path)
    with trainer(optimizer=bt.SGD(0.1)) as other, pytest.raises(bt.CheckpointError, match="optimizer"):
        other.restore(tmp_path)


def test_dropout_draws_anew_in_every_step_and_again_after_a_restart(tmp_path):
    images, labels = next(data().epoch(0))
    with trainer(learning_rate=0.0) as t:
        losses = []
        for _ in range(4):
            t.save(tmp_path / str(t.step))
            losses.append(t.train_step(images, labels).loss)
        assert len(set(losses)) == 4
    with trainer(learning_rate=0.0) as t:
        assert t.restore(tmp_path / "2")
        assert t.train_step(images, labels).loss == losses[2]


def test_evaluation_and_prediction_leave_parameters_statistics_and_momentum_alone():
    with trainer() as t:
        list(t.fit(data(), epochs=1))
        before = {name: t.state.read(name).tobytes() for name in t.state.names()}
        assert any(name.endswith(".momentum") for name in before)
        t.evaluate(data())
        t.predict(data().images)
        assert {name: t.state.read(name).tobytes() for name in t.state.names()} == before


def test_a_changed_learning_rate_is_kept(tmp_path):
    with trainer() as t:
        t.learning_rate = 0.025
        t.train_step(*next(data().epoch(0)))
        t.save(tmp_path)
    with trainer() as t:
        assert t.learning_rate == 0.1
        t.restore(tmp_path)
        assert t.learning_rate == 0.025


def test_a_restored_run_uses_the_kernels_of_the_checkpoint(tmp_path, monkeypatch):
    def last_is_fastest(graph, backend):
        rows = estimate(graph, backend).kernels
        return CostTable(
            tuple(tuple(replace(k, seconds=1.0 / (1 + n)) for n, k in enumerate(row)) for row in rows),
        )

    def trained(folder):
        with trainer(kernels="fit", device="reference") as t:
            t.restore(folder)
            t.train_step(*next(data().epoch(0)))
            t.save(folder)
            return t.planned.kernel_names

    with monkeypatch.context() as patch:
        patch.setattr(session, "estimate", last_is_fastest)
        chosen = trained(tmp_path / "first")
    assert trained(tmp_path / "other") != chosen
    assert trained(tmp_path / "first") == chosen


def test_another_choice_of_kernels_is_said(tmp_path, caplog):
    with trainer(kernels="fixed") as t:
        t.train_step(*next(data().epoch(0)))
        t.save(tmp_path)
    with trainer(kernels="fit") as t:
        t.restore(tmp_path)
    assert "kernel_choice was 'fixed' and is 'fit'" in caplog.text


def test_another_backend_and_another_version_are_said(tmp_path, caplog, monkeypatch):
    with trainer(device="reference") as t:
        t.train_step(*next(data().epoch(0)))
        t.save(tmp_path)
    monkeypatch.setattr(ReferenceBackend, "name", "other")
    monkeypatch.setattr(ReferenceBackend, "version", lambda self: "numpy of tomorrow")
    with trainer(device="reference") as t:
        t.restore(tmp_path)
    assert "backend was 'reference' and is 'other'" in caplog.text
    assert "is 'numpy of tomorrow'" in caplog.text


def test_another_number_of_threads_is_said(tmp_path, caplog):
    with trainer(threads=1) as t:
        t.train_step(*next(data().epoch(0)))
        t.save(tmp_path)
    with trainer(threads=2) as other:
        other.restore(tmp_path)
    assert "threads was 1 and is 2" in caplog.text


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path, caplog):
    with trainer() as t:
        for _ in t.fit(data(), epochs=1):
            t.save(tmp_path)
    newest = max(tmp_path.glob("*.bathyal"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with trainer() as t:
        assert t.restore(tmp_path)
        assert t.step == 2
    assert newest.name in caplog.text
    for path in tmp_path.glob("*.bathyal"):
        path.write_bytes(b"")
    with trainer() as t, pytest.raises(bt.CheckpointError, match="damaged"):
        t.restore(tmp_path)


def test_one_byte_under_the_minimum_is_refused_before_training():
    with trainer(strategy="chain") as t:
        least = t.plan.min_budget_bytes
    with trainer(strategy="chain", memory=least) as t:
        assert np.isfinite(t.train_step(*next(data().epoch(0))).loss)
        assert t.arena_high_water_bytes == t.plan.peak_bytes <= least
    with trainer(strategy="chain", memory=least - 1) as t, pytest.raises(bt.BudgetError, match=str(least)) as refused:
        t.train_step(*next(data().epoch(0)))
    assert refused.value.least_bytes == least


def test_more_memory_than_the_machine_has_is_refused():
    with trainer(memory="900 TiB") as t, pytest.raises(bt.BudgetError, match="free"):
        _ = t.plan


def test_default_memory_is_most_of_what_is_free_but_only_the_plan_is_taken():
    with trainer(memory=None) as t:
        t.train_step(*next(data().epoch(0)))
        assert t.plan.budget_bytes > 10 * t.plan.peak_bytes
        assert t.arena_bytes == t.plan.peak_bytes


def test_evaluation_in_a_budget_too_small_for_the_whole_batch(monkeypatch):
    with trainer(strategy="chain") as t:
        least = t.plan.min_budget_bytes
    with trainer(strategy="chain", memory=least) as t:
        list(t.fit(data(), epochs=1))
        whole = t.evaluate(data())
        session = t._session
        plan = session.program

        def smaller(mode, batch):
            if mode is not Mode.TRAINING and batch > 3:
                raise bt.BudgetError("memory", "more", "less")
            return plan(mode, batch)

        monkeypatch.setattr(session, "program", smaller)
        parts = t.evaluate(data())
        assert (parts.images, parts.top1) == (whole.images, whole.top1)
        assert parts.loss == pytest.approx(whole.loss, rel=1e-5)


def test_learning_rate_schedule_is_a_function_of_the_step():
    seen = []

    def rate(step):
        seen.append(step)
        return 0.0

    with trainer(learning_rate=rate) as t:
        before = {name: t.state.read(name) for name in t.state.names(bt.layers.Role.PARAMETER)}
        list(t.fit(data(), epochs=1))
        assert seen == [0, 1, 2]
        assert all((t.state.read(name) == value).all() for name, value in before.items())


def test_bad_batches_change_nothing():
    images, labels = next(data().epoch(0))
    with trainer() as t:
        before = t.state.weights_sha256()
        with pytest.raises(bt.DataError, match="5"):
            t.train_step(images, np.full(8, 5))
        with pytest.raises(bt.DataError):
            t.train_step(images[:, :2], labels)
        assert t.step == 0
        assert t.state.weights_sha256() == before


def test_any_layout_of_the_same_numbers_gives_the_same_step():
    images, labels = next(data().epoch(0))
    turned = np.ascontiguousarray(images[::-1].transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)[::-1]
    variants = [images, turned, np.asfortranarray(images), images.astype(">f4"), images.astype("f8")]
    digests = set()
    for variant in variants:
        with trainer(kernels="fixed") as t:
            t.train_step(variant, labels.astype(">i2"))
            digests.add(t.state.weights_sha256())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        ({"strategy": "chian"}, "chain"),
        ({"kernels": "fats"}, "fit"),
        ({"device": "refrence"}, "reference"),
        ({"dtype": "float16"}, "float32"),
        ({"threads": 0}, "from 1 to"),
        ({"seed": -1}, "seed"),
        ({"costs": "guess"}, "measured"),
    ],
)
def test_choices_that_make_no_sense(choice, match):
    with pytest.raises(bt.ConfigError, match=match):
        trainer(**choice)


@pytest.mark.parametrize("memory", ["12 parsecs", "-1 MiB", 0, "1 Gb", "nan GiB"])
def test_budgets_that_make_no_sense(memory):
    with pytest.raises(bt.ConfigError, match="memory"):
        trainer(memory=memory)


def test_an_empty_epoch_is_an_error_not_an_endless_loop():
    with trainer() as t, pytest.raises(bt.DataError):
        list(t.fit(lambda: iter(()), epochs=3))


def test_measured_costs_are_kept_and_read_again(tmp_path):
    with trainer(costs="measured", cache=tmp_path) as t:
        first = t.planned.costs
    (kept,) = tmp_path.glob("costs-*.json")
    with trainer(costs="measured", cache=tmp_path) as t:
        assert t.planned.costs == first
    kept.write_text("{damaged")
    with trainer(costs="measured", cache=tmp_path) as t:
        assert all(k.seconds > 0 for row in t.planned.costs.kernels for k in row)


def test_closing_gives_the_memory_back_and_may_be_repeated():
    t = trainer()
    t.train_step(*next(data().epoch(0)))
    t.close()
    t.close()
    assert not t._session._programs
    assert t._session._device is None
    t.close()


def test_a_closed_trainer_has_no_weights_to_save_or_use(tmp_path):
    """It would be opened again with first values, and those saved as the weights of step 3."""
    t = trainer()
    list(t.fit(data()))
    t.close()
    for use in (lambda: t.save(tmp_path), lambda: t.predict(data().images), lambda: list(t.fit(data(), epochs=2))):
        with pytest.raises(bt.ConfigError, match="closed trainer"):
            use()
    assert not list(tmp_path.iterdir())


def test_a_closed_trainer_can_restore(tmp_path):
    t = trainer()
    list(t.fit(data()))
    t.save(tmp_path)
    weights = t.state.weights_sha256()
    t.close()
    assert t.restore(tmp_path)
    assert t.state.weights_sha256() == weights
    t.close()


def test_a_step_that_broke_off_is_not_saved(tmp_path):
    with trainer() as t:
        list(t.fit(data()))
        _, executor = t._session.program(Mode.TRAINING, 8)
        executor._launches.append(executor._launches[-1])
        executor._launches[-1] = None  # the last work of the step fails, when the weights are updated
        with pytest.raises(TypeError):
            t.train_step(*next(data().epoch(0)))
        with pytest.raises(bt.ConfigError, match="step 4 that broke off"):
            t.save(tmp_path)


@pytest.mark.usefixtures("python_interrupts")
def test_an_interrupt_waits_for_the_step_to_end(tmp_path):
    source = data()
    with trainer() as whole, trainer() as t:
        expected = [r.loss for r in whole.fit(source)]
        run = t._session.program(Mode.TRAINING, 8)[1].run

        def interrupted(feeds, watch):
            signal.raise_signal(signal.SIGINT)
            return run(feeds, watch)

        t._session.program(Mode.TRAINING, 8)[1].run = interrupted
        with pytest.raises(KeyboardInterrupt):
            list(t.fit(source))
        assert t.step == 1
        t._session.program(Mode.TRAINING, 8)[1].run = run
        assert [r.loss for r in t.fit(source)] == expected[1:]


def test_evaluation_names_its_own_batches():
    images, labels = data().images, data().labels.copy()
    labels[20] = 9
    with trainer() as t, pytest.raises(bt.DataError, match="batch 2, label 4"):
        t.evaluate(bt.ArrayDataset(images, labels, 8, shuffle=False))


@pytest.mark.parametrize("rate", ["fast", None, float("inf"), float("nan"), -1, np.array([0.1, 0.2])])
def test_a_learning_rate_that_is_none(rate):
    with trainer(learning_rate=lambda step: rate) as t, pytest.raises(bt.ConfigError, match="learning_rate"):
        list(t.fit(data()))


@pytest.mark.parametrize("limits", [{"epochs": -1}, {"epochs": 1.5}, {"steps": "3"}])
def test_limits_of_training_are_whole_numbers(limits):
    with trainer() as t, pytest.raises(bt.ConfigError, match=next(iter(limits))):
        t.fit(data(), **limits)


@pytest.mark.parametrize(
    "shape", [8, None, "abcd", (8,), (True, 3, 8, 8), (8.0, 3, 8, 8), (0, 3, 8, 8), (2**60, 3, 8, 8)]
)
def test_shapes_that_are_none(shape):
    with pytest.raises(bt.ShapeError, match="input_shape"):
        bt.Trainer(network(), shape)


def test_sizes_of_numpy_are_sizes(tmp_path):
    shape = tuple(np.array(SHAPE))
    with bt.Trainer(network(), shape, memory="4 MiB", costs="analytic", learning_rate=np.float32(0.1)) as t:
        list(t.fit(data()))
        t.save(tmp_path)
        assert t.restore(tmp_path)


def test_other_mistakes_are_named(tmp_path):
    for optimizer in ("sgd", bt.SGD):
        with pytest.raises(bt.ConfigError, match="optimizer"):
            trainer(optimizer=optimizer)
    with trainer() as t:
        for images in (None, [1, 2], np.float32(3)):
            with pytest.raises(bt.DataError, match="predict"):
                t.predict(images)


def test_a_checkpoint_of_another_run_says_what_differs(tmp_path):
    with trainer() as t:
        t.save(tmp_path)
    other = bt.Trainer(network(7), SHAPE, optimizer=bt.SGD(0.1, momentum=0.9), memory="4 MiB")
    with other, pytest.raises(bt.CheckpointError, match="classes 7, got 5"):
        other.restore(tmp_path)


def test_the_same_number_of_threads_is_no_difference(tmp_path, caplog):
    with trainer(threads=1) as t:
        t.save(tmp_path)
    with trainer(threads=1) as t:
        t.restore(tmp_path)
    assert not caplog.records
