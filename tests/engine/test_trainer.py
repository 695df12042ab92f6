import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.session import Mode

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
        bt.Trainer(network(), (3, *SHAPE[1:]), optimizer=bt.SGD(0.1, momentum=0.9), memory="4 MiB") as u,
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
    with trainer(optimizer=bt.SGD(0.1)) as other, pytest.raises(bt.CheckpointError, match="optimizer"):
        other.restore(tmp_path)


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
        ({"backend": "refrence"}, "reference"),
        ({"dtype": "float16"}, "float32"),
        ({"threads": 0}, "at least 1"),
        ({"seed": -1}, "seed"),
        ({"costs": "guess"}, "measured"),
    ],
)
def test_choices_that_make_no_sense(choice, match):
    with pytest.raises(bt.ConfigError, match=match):
        trainer(**choice)


@pytest.mark.parametrize("memory", ["12 parsecs", "-1 MiB", 0, "1 Gb", "nan GiB"])
def test_budgets_that_make_no_sense(memory):
    with trainer(memory=memory) as t, pytest.raises(bt.ConfigError):
        _ = t.plan


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
    assert np.isfinite(t.train_step(*next(data().epoch(0))).loss)
    t.close()
