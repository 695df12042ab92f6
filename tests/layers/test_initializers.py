"""First values: their distribution, and that only seed and name decide them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bathyal.layers import Constant, Conv2d, Flatten, He, Linear, Normal, Sequential, Uniform, Xavier, forward_graph
from bathyal.layers.initializers import Initializer, fans, from_plain, initialize, initialize_rows, to_plain

SHAPE = (96, 64, 3, 5)
FAN_IN, FAN_OUT = 64 * 15, 96 * 15


def draw(initializer: Initializer, name: str = "w", seed: int = 0, dtype: str = "float64") -> Any:
    return initialize(initializer, SHAPE, dtype, seed=seed, name=name)


def test_fans() -> None:
    assert fans(SHAPE) == (FAN_IN, FAN_OUT)
    assert fans((10, 7)) == (7, 10)


@pytest.mark.parametrize(
    ("initializer", "mean", "std"),
    [
        (Normal(0.5, 0.02), 0.5, 0.02),
        (He("in"), 0.0, math.sqrt(2 / FAN_IN)),
        (He("out"), 0.0, math.sqrt(2 / FAN_OUT)),
        (Xavier(), 0.0, math.sqrt(2 / (FAN_IN + FAN_OUT))),
        (Uniform(), 0.0, math.sqrt(1 / (3 * FAN_IN))),
    ],
)
def test_mean_and_deviation(initializer: Initializer, mean: float, std: float) -> None:
    values = draw(initializer)
    # Five standard errors of the mean and of the deviation, of 92,160 independent draws.
    assert abs(values.mean() - mean) < 5 * std / math.sqrt(values.size)
    assert abs(values.std() / std - 1) < 5 / math.sqrt(2 * values.size)


@pytest.mark.parametrize(
    ("initializer", "bound"),
    [(Xavier(), math.sqrt(6 / (FAN_IN + FAN_OUT))), (Uniform(), 1 / math.sqrt(FAN_IN))],
)
def test_uniform_draws_fill_their_bounds(initializer: Initializer, bound: float) -> None:
    values = draw(initializer)
    assert 0.999 * bound < values.max() < bound
    assert -bound <= values.min() < -0.999 * bound


def test_constant() -> None:
    np.testing.assert_array_equal(draw(Constant(0.25), dtype="float32"), np.full(SHAPE, 0.25, np.float32))


@pytest.mark.parametrize("initializer", [Normal(), He(), Xavier(), Uniform()])
def test_seed_and_name_decide_alone(initializer: Initializer) -> None:
    values = draw(initializer, "a", 1)
    np.testing.assert_array_equal(values, draw(initializer, "a", 1))
    for other in (draw(initializer, "b", 1), draw(initializer, "a", 2), draw(initializer, "a", -1)):
        assert abs(np.corrcoef(values.ravel(), other.ravel())[0, 1]) < 5 / math.sqrt(values.size)


@pytest.mark.parametrize("initializer", [Constant(0.1), Normal(), He(), Xavier(), Uniform()])
def test_float32_draws_are_the_rounded_float64_draws(initializer: Initializer) -> None:
    single = draw(initializer, dtype="float32")
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, draw(initializer).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("initializer", [Constant(0.1), Normal(), He("in"), He("out"), Xavier(), Uniform()])
def test_pieces_are_those_of_the_whole(initializer: Initializer, dtype: str) -> None:
    rows = (1, 31, 0, 7, 57)
    pieces = list(initialize_rows(initializer, SHAPE, dtype, rows, seed=3, name="w"))
    assert [piece.shape for piece in pieces] == [(count, *SHAPE[1:]) for count in rows]
    np.testing.assert_array_equal(np.concatenate(pieces), draw(initializer, seed=3, dtype=dtype))


@pytest.mark.parametrize("initializer", [None, Constant(0.1), Normal(1.0, 2.0), He("out"), Xavier(), Uniform()])
def test_plain_form_comes_back(initializer: Initializer | None) -> None:
    assert from_plain(to_plain(initializer)) == initializer


def test_a_network_s_values_do_not_depend_on_what_else_is_in_it(
    initial_values: Callable[..., dict[str, np.ndarray]],
) -> None:
    last = (Flatten(), Linear(5, name="fc"))
    small = forward_graph(Sequential(Conv2d(4, 3, name="b"), *last), (2, 4, 8, 8))
    large = forward_graph(Sequential(Conv2d(4, 1, name="a"), Conv2d(4, 3, name="b"), *last), (1, 4, 8, 8))
    few, many = initial_values(small, seed=4), initial_values(large, seed=4)
    assert set(many) - set(few) == {"a.weight", "a.bias"}
    for name, value in few.items():
        np.testing.assert_array_equal(value, many[name])
