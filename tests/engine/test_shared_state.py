"""Programs of one session read the same bytes as the same values: what the training step decides of the state holds."""

import random
from dataclasses import replace

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.backends import registry
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.shared_state import list_state, require_same_state
from bathyal.layers import SGD, evaluation_graph, forward_graph, training_graph
from bathyal.memory.errors import PlanError
from tests.support.onednn_library import onednn_backend

BATCH, CLASSES = 6, 5
SIZES = (BATCH, 1, BATCH + 3)
SEEDS = (1, 2, 5, 10, 25, 35, 41, 45)
"""In the last six a convolution reads the images in evaluation alone."""


def random_start(seed):
    """A network whose first layers are of any kind, in any order, before and between its convolutions."""
    rng = random.Random(seed)
    makers = (
        lambda: bt.Dropout(0.2),
        bt.BatchNorm2d,
        bt.ReLU,
        bt.Sigmoid,
        lambda: bt.MaxPool2d(3, 1, 1),
        lambda: bt.AvgPool2d(3, 1, 1),
        bt.Identity,
        lambda: bt.Residual(bt.ReLU()),
        lambda: bt.LocalResponseNorm(3),
    )
    # What vanishes in evaluation comes first often: the convolution behind it then reads the images themselves.
    layers = [makers[0]() if rng.random() < 0.5 else rng.choice(makers)() for _ in range(rng.randint(0, 2))]
    for _ in range(rng.randint(1, 3)):
        layers.append(bt.Conv2d(rng.choice((4, 8, 16, 20)), rng.choice((1, 3)), padding=1))
        layers += [rng.choice(makers)() for _ in range(rng.randint(0, 2))]
    ending = [bt.GlobalAvgPool2d(), bt.Flatten()] if rng.random() < 0.5 else [bt.Flatten(), bt.Dropout(0.3)]
    return bt.Sequential(*layers, *ending, bt.Linear(CLASSES)), rng.choice((1, 3, 8, 16, 20))


def draw_batch(rng, images, channels):
    return rng.standard_normal((images, channels, 8, 8)).astype(np.float32), rng.integers(0, CLASSES, images)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_programs_read_the_state_that_was_trained(seed):
    """The same values in numpy's layouts give the same outputs, at every batch size, in evaluation and prediction."""
    onednn_backend()
    network, channels = random_start(seed)
    choices = {"optimizer": SGD(0.01, momentum=0.9), "memory": "8 MiB", "costs": "analytic"}
    rng = np.random.default_rng(seed)
    shape = (BATCH, channels, 8, 8)
    with (
        bt.Trainer(network, shape, device="onednn", **choices) as fast,
        bt.Trainer(network, shape, device="reference", **choices) as plain,
    ):
        for images in (BATCH, 4):
            fast.train_step(*draw_batch(rng, images, channels))
        plain.step = fast.step
        for name in fast.state.tensors:
            plain.state.write(name, fast.state.read(name))
        for images in SIZES:
            batch = draw_batch(rng, images, channels)
            found, expected = (t.predict(batch[0]) for t in (fast, plain))
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
            parts = [(batch[0][i : i + BATCH], batch[1][i : i + BATCH]) for i in range(0, images, BATCH)]
            assert fast.evaluate(parts).loss == pytest.approx(plain.evaluate(parts).loss, rel=1e-4)
        batch = draw_batch(rng, BATCH - 1, channels)
        assert fast.train_step(*batch).loss == pytest.approx(plain.train_step(*batch).loss, rel=1e-3)


NETWORK = bt.Sequential(bt.Dropout(0.1), bt.Conv2d(16, 3, padding=1), bt.Flatten(), bt.Linear(CLASSES))


def forward(batch=2, network=NETWORK):
    return forward_graph(network, (batch, 1, 8, 8))


def test_a_graph_is_lowered_with_the_layouts_that_the_state_has():
    backend = onednn_backend()
    state = list_state(lower(training_graph(forward(), SGD(momentum=0.9)), backend))
    alone = list_state(lower(evaluation_graph(forward()), backend))
    taken = list_state(lower(evaluation_graph(forward()), backend, state))
    (weight,) = (name for name in alone if alone[name].layout != state[name].layout)
    assert taken[weight].layout == state[weight].layout
    assert taken[weight].nbytes == state[weight].nbytes


def test_what_another_backend_object_has_laid_out_is_refused():
    """Its layouts are those of its own library object, which this one may never have seen."""
    state = list_state(lower(training_graph(forward(), SGD()), onednn_backend()))
    foreign = {name: replace(t, layout="a layout of nobody" if len(t.shape) == 4 else "") for name, t in state.items()}
    with pytest.raises(PlanError, match=r"a layout of nobody"):
        lower(evaluation_graph(forward()), onednn_backend(), foreign)


@pytest.mark.parametrize(
    ("field", "value"),
    [("shape", (3, 3)), ("dtype", "float64"), ("layout", "another"), ("nbytes", 12), ("role", "buffer")],
)
def test_every_difference_of_a_tensor_is_named(field, value):
    graph = lower(training_graph(forward(), SGD(momentum=0.9)), ReferenceBackend())
    state = list_state(graph)
    require_same_state("training 2", graph, state)
    name = next(iter(state))
    other = {**state, name: replace(state[name], **{field: value})}
    with pytest.raises(PlanError, match=rf"training 2.*{name}.*{field}"):
        require_same_state("training 2", graph, other)


def test_state_that_the_training_step_does_not_have_is_refused():
    graph = lower(evaluation_graph(forward()), ReferenceBackend())
    with pytest.raises(PlanError, match=r"evaluation 2.*no such tensor"):
        require_same_state("evaluation 2", graph, {})


class StubbornBackend(ReferenceBackend):
    """A backend of a program's own that gives the state of an evaluation another layout than training has."""

    name = "stubborn"

    def lower(self, graph, state=None):
        tensors = tuple(
            replace(t, layout="mine") if len(t.shape) == 2 and t.name.endswith("weight") and state else t
            for t in graph.tensors
        )
        return replace(graph, tensors=tensors)


def test_a_backend_of_a_program_that_disagrees_with_itself_is_found_out():
    registry.register_backend("stubborn", lambda options: StubbornBackend())
    try:
        with bt.Trainer(NETWORK, (2, 1, 8, 8), memory="1 MiB", device="stubborn", costs="analytic") as trainer:
            trainer.train_step(*draw_batch(np.random.default_rng(0), 2, 1))
            with pytest.raises(PlanError, match=r"3.weight.*layout .mine."):
                trainer.predict(np.zeros((2, 1, 8, 8), np.float32))
    finally:
        registry.unregister_backend("stubborn")
