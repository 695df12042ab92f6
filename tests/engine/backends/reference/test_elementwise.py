"""Activations, sums, concatenations, changes of shape and dropout of the numpy backend."""

import numpy as np
import pytest

from bathyal.engine.backends.reference import blocks
from bathyal.engine.backends.reference.activation import ACTIVATION
from bathyal.engine.backends.reference.dropout import uniforms
from bathyal.layers.graph import TensorSpec

ACTIVATIONS = ["relu", "sigmoid", "tanh"]


def test_all_activations_are_tested_here():
    assert set(ACTIVATION) == {name for kind in ACTIVATIONS for name in (kind, f"{kind}_backward")}


def same(x):
    return [TensorSpec(x.shape, str(x.dtype))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 4, 5, 6), (2, 3, 150, 151)])
def test_activations_are_pytorchs(harness, torch, close, kind, shape, dtype):
    rng = np.random.default_rng(0)
    x, dy = (3 * rng.standard_normal(shape).astype(dtype) for _ in range(2))
    leaf = torch.tensor(x.astype("float64"), requires_grad=True)
    theirs = getattr(torch, kind)(leaf)
    theirs.backward(torch.tensor(dy.astype("float64")))
    (y,) = harness.compute(kind, [x])
    close(y, theirs.detach().numpy())
    (dx,) = harness.compute(f"{kind}_backward", [y, dy], {}, same(x))
    close(dx, leaf.grad.numpy())


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_gradients_of_activations_are_finite_differences(harness, slope, kind):
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((4, 5)), rng.standard_normal((4, 5))
    x[np.abs(x) < 1e-3] = 0.5
    (y,) = harness.compute(kind, [x])
    (dx,) = harness.compute(f"{kind}_backward", [y, dy], {}, same(x))
    slope(lambda a: harness.compute(kind, [a])[0] * dy, (x,), (dx,))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sigmoid_keeps_small_values_and_never_overflows(harness, dtype):
    x = np.array([[-1000, -85, -20, 0, 20, 1000, np.inf, -np.inf, np.nan]], dtype)
    (y,) = harness.compute("sigmoid", [x])
    wide = x.astype("longdouble")
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-wide))
    np.testing.assert_allclose(y[:, 1:], exact[:, 1:].astype(dtype), rtol=4 * np.finfo(dtype).eps)
    assert y[0, 0] == 0


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_a_nan_stays_and_relu_lets_its_gradient_through(harness, kind):
    x = np.array([[np.nan, -1.0, 2.0]])
    (y,) = harness.compute(kind, [x])
    assert np.isnan(y[0, 0]) and np.isfinite(y[0, 1:]).all()
    if kind == "relu":
        (dx,) = harness.compute("relu_backward", [y, np.array([[3.0, 4.0, 5.0]])], {}, same(x))
        np.testing.assert_array_equal(dx, [[3, 0, 5]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_add_concat_split_and_reshape(harness, dtype):
    rng = np.random.default_rng(2)
    a, b, c = (rng.standard_normal((3, n, 4, 5)).astype(dtype) for n in (2, 2, 7))
    np.testing.assert_array_equal(harness.compute("add", [a, b])[0], a + b)
    np.testing.assert_array_equal(harness.compute("add", [a, a])[0], a + a)
    (whole,) = harness.compute("concat", [a, b, c])
    np.testing.assert_array_equal(whole, np.concatenate([a, b, c], 1))
    parts = harness.compute("split", [whole], {}, [*same(a), *same(b), *same(c)])
    for ours, theirs in zip(parts, (a, b, c), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    flat = harness.compute("flatten", [c])[0]
    np.testing.assert_array_equal(flat, c.reshape(3, -1))
    np.testing.assert_array_equal(harness.compute("reshape", [flat], {}, same(c))[0], c)
    (two,) = harness.compute("concat", [flat, flat])
    np.testing.assert_array_equal(two, np.concatenate([flat, flat], 1))


def mask(harness, shape, p, seed, step, stream, dtype):
    x = np.ones(shape, dtype)
    options = {"p": p, "stream": stream}
    (y,) = harness.compute("dropout_training", [x, np.array([seed, step])], options, same(x))
    return y


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropout_zeroes_a_share_p_and_scales_the_rest(harness, close, p):
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal((20, 5000)) for _ in range(2))
    key, options = np.array([7, 11]), {"p": p, "stream": 2}
    (y,) = harness.compute("dropout_training", [x, key], options, same(x))
    (dx,) = harness.compute("dropout_backward", [dy, key], options, same(x))
    kept = uniforms(key, 2).random(x.shape, np.float32) >= np.float32(p)
    close(y, np.where(kept, x / (1 - p), 0))
    close(dx, np.where(kept, dy / (1 - p), 0))
    assert abs(kept.mean() - (1 - p)) < 4 * np.sqrt(p * (1 - p) / x.size) + 1e-12


def test_masks_depend_on_seed_step_and_stream_and_on_nothing_else(harness, monkeypatch):
    shape = (7, 11, 13, 60)
    first = mask(harness, shape, 0.4, 1, 2, 3, "float32")
    narrow, wide = first != 0, mask(harness, shape, 0.4, 1, 2, 3, "float64") != 0
    np.testing.assert_array_equal(narrow, wide)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3), (-1, 2, 3)):
        differing = (mask(harness, shape, 0.4, *other, "float32") != 0) != narrow
        assert abs(differing.mean() - 0.48) < 0.01, other
    monkeypatch.setattr(blocks.flat_spans, "__defaults__", (1001,))
    harness.backend._kernels.clear()
    harness.backend._launches.clear()
    np.testing.assert_array_equal(mask(harness, shape, 0.4, 1, 2, 3, "float32"), first)
    harness.backend._kernels.clear()


def test_gradients_of_dropout_and_merges_are_finite_differences(harness, slope):
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((3, 2))
    key, options = np.array([5, 6]), {"p": 0.3, "stream": 0}
    dy = rng.standard_normal((3, 4))
    (dx,) = harness.compute("dropout_backward", [dy, key], options, same(a))
    slope(lambda x: harness.compute("dropout_training", [x, key], options, same(x))[0] * dy, (a,), (dx,))
    both = rng.standard_normal((3, 6))
    parts = harness.compute("split", [both], {}, [*same(a), *same(b)])
    slope(lambda *x: harness.compute("concat", x)[0] * both, (a, b), parts)
    images, flat = rng.standard_normal((3, 2, 2, 1)), rng.standard_normal((3, 4))
    (dx,) = harness.compute("reshape", [flat], {}, same(images))
    slope(lambda x: harness.compute("flatten", [x])[0] * flat, (images,), (dx,))
