"""What `Trainer.fit` says where nothing is trained."""

import gc
import warnings

import numpy as np
import pytest

import bathyal as bt


@pytest.fixture
def trainer():
    network = bt.Sequential(bt.Flatten(), bt.Linear(3))
    with bt.Trainer(network, (2, 4), device="reference", memory="1 MiB", costs="analytic") as made:
        yield made


def batches(count=2):
    return [(np.ones((2, 4), np.float32), np.zeros(2, np.int64))] * count


def test_steps_that_are_never_taken_are_warned_of(trainer):
    with pytest.warns(UserWarning, match=r"never taken: nothing was trained.*for result in trainer\.fit"):
        trainer.fit(batches(), epochs=3)
        gc.collect()
    assert trainer.step == 0


def test_one_step_is_enough_and_closing_is(trainer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(trainer.fit(batches())))
        trainer.fit(batches()).close()
        with pytest.raises(bt.ConfigError):
            trainer.fit(batches(), epochs=-1)
        assert list(trainer.fit(batches(), epochs=0)) == []
        gc.collect()
    assert trainer.step == 1


def test_a_second_fit_of_as_many_epochs_says_what_to_write(trainer):
    assert len(list(trainer.fit(batches(), epochs=3))) == 6
    with pytest.warns(UserWarning, match=r"nothing to train: 3 epochs are done.*epochs=6 trains 3 more") as caught:
        assert list(trainer.fit(batches(), epochs=3)) == []
    assert caught[0].filename == __file__
    assert len(list(trainer.fit(batches(), epochs=6))) == 6
    with pytest.warns(UserWarning, match=r"12 steps are done.*steps=20 trains 8 more"):
        assert list(trainer.fit(batches(), epochs=9, steps=8)) == []


def test_a_generator_serves_one_epoch_and_says_so(trainer):
    source = iter(batches())
    assert len(list(trainer.fit(source))) == 2
    with pytest.raises(bt.DataError, match="used up by an earlier"):
        list(trainer.fit(source, epochs=2))


class TestSizesThatAreKnownAhead:
    """All are planned before the first step: an epoch of hours must not end in a refusal."""

    def fit(self, images, steps=None, drop_last=False, memory="4 MiB", network=None):
        network = network or bt.Sequential(
            bt.Conv2d(4, 3), bt.MaxPool2d(6), bt.BatchNorm2d(), bt.ReLU(), bt.Flatten(), bt.Linear(2)
        )
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(images, 3, 8, 8)).astype(np.float32), np.arange(images) % 2
        data = bt.ArrayDataset(x, y, 8, drop_last=drop_last)
        trainer = bt.Trainer(network, (8, 3, 8, 8), memory=memory, costs="analytic", device="reference")
        with trainer:
            try:
                list(trainer.fit(data, steps=steps))
            finally:
                self.steps = trainer.step

    def test_a_last_batch_that_a_layer_refuses(self):
        with pytest.raises(bt.ShapeError, match=r"the last batch of an epoch has 1 images: .*--drop-last"):
            self.fit(33)
        assert self.steps == 0

    def test_left_out_or_never_reached_it_does_no_harm(self):
        self.fit(33, drop_last=True)
        assert self.steps == 4
        self.fit(33, steps=4)
        assert self.steps == 4
        with pytest.raises(bt.ShapeError):
            self.fit(33, steps=5)

    def test_two_images_are_enough(self):
        self.fit(34)
        assert self.steps == 5

    def test_lists_are_known_too(self):
        network = bt.Sequential(bt.BatchNorm2d(), bt.Flatten(), bt.Linear(2))
        batches = [(np.ones((n, 3, 1, 1), np.float32), np.zeros(n, np.int64)) for n in (4, 4, 1)]
        with bt.Trainer(network, (4, 3, 1, 1), memory="1 MiB", costs="analytic", device="reference") as trainer:
            with pytest.raises(bt.ShapeError, match="the last batch of an epoch has 1 images"):
                list(trainer.fit(batches))
            assert trainer.step == 0
            with pytest.raises(bt.DataError):
                list(trainer.fit([(1, 2)]))


@pytest.mark.parametrize(
    "choice",
    [
        *({"memory": value} for value in (float("inf"), float("nan"), True, "1e400", 10**30, -1, [], "1 MiB ago")),
        *({"threads": value} for value in (0, -1, 1.5, "2", True, 10**30, float("nan"))),
        *({"seed": value} for value in (-1, 0.5, "0", None, True, 10**30, float("inf"))),
        *({"learning_rate": value} for value in (-1, "0.1", True, float("nan"), float("inf"), 10**400, 1e39)),
        *({"spill_size": value} for value in (0, "many", 1.5)),
        *({"progress": value} for value in (1, "yes", None)),
        *({"cuda_graphs": value} for value in (1, "yes", None)),
        *({name: 3} for name in ("strategy", "kernels", "device", "dtype", "costs", "link", "math", "cache", "plan")),
        {"dtype": "float16"},
        {"make_tier": 3},
        {"optimizer": bt.SGD},
        {"optimizer": "sgd"},
        {"loss": bt.CrossEntropy},
    ],
    ids=str,
)
def test_choices_that_make_no_sense_are_refused_when_a_trainer_is_made(choice):
    with pytest.raises(bt.ConfigError):
        bt.Trainer(bt.Sequential(bt.Flatten(), bt.Linear(3)), (2, 4), **{"device": "reference", **choice})


@pytest.mark.parametrize("shape", [(2,), 4, "24", (0, 4), (2, 4.0), (True, 4), (2, 10**30), (2, 10**5000), None])
def test_shapes_that_make_no_sense_are_refused(shape):
    with pytest.raises(bt.ShapeError, match="input_shape"):
        bt.Trainer(bt.Sequential(bt.Flatten(), bt.Linear(3)), shape)


def test_numbers_of_numpy_are_taken(trainer):
    choices = {"memory": np.int64(2**20), "threads": np.int32(1), "seed": np.uint8(3), "cuda_graphs": np.bool_(True)}
    made = bt.Trainer(
        trainer.network, (np.int64(2), np.int32(4)), device="reference", learning_rate=np.float32(0.5), **choices
    )
    assert made.settings.seed == 3 and made.settings.input_shape == (2, 4)
