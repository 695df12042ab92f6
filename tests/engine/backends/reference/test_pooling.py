"""Max, average and global average pooling of the numpy backend against PyTorch."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bathyal.layers.graph import TensorSpec
from bathyal.layers.pooling import pooled_size

QUICK = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def attrs(kernel, stride, padding=(0, 0), ceil_mode=False, count_include_pad=None):
    made = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
    return made if count_include_pad is None else {**made, "count_include_pad": count_include_pad}


CASES = {
    "2x2": ((3, 4, 8, 6), attrs((2, 2), (2, 2))),
    "stem": ((2, 3, 15, 14), attrs((3, 3), (2, 2), (1, 1))),
    "stem, ceil": ((2, 3, 16, 14), attrs((3, 3), (2, 2), (1, 1), True)),
    "overlapping": ((2, 3, 7, 6), attrs((3, 3), (1, 1), (1, 1))),
    "rectangular": ((2, 3, 9, 12), attrs((2, 5), (3, 1), (1, 2))),
    "ceil hangs over": ((2, 2, 5, 5), attrs((2, 2), (2, 2), (0, 0), True)),
    "ceil, wide strides": ((2, 2, 9, 7), attrs((3, 2), (4, 3), (1, 1), True)),
    "window is the image": ((2, 2, 4, 5), attrs((4, 5), (1, 1))),
    "skips pixels": ((2, 2, 9, 9), attrs((1, 2), (3, 4))),
    "one pixel": ((1, 1, 1, 1), attrs((1, 1), (1, 1))),
    "large window": ((1, 2, 20, 18), attrs((17, 17), (2, 2), (3, 3))),
    "many planes": ((64, 16, 16, 16), attrs((3, 3), (2, 2), (1, 1))),
    "large plane": ((1, 2, 400, 380), attrs((2, 2), (2, 2))),
}


def y_spec(x, options):
    size = [
        pooled_size(
            x.shape[2 + a], options["kernel"][a], options["stride"][a], options["padding"][a], options["ceil_mode"]
        )
        for a in (0, 1)
    ]
    return TensorSpec((*x.shape[:2], *size), str(x.dtype))


def flat_index(index, x, options):
    """PyTorch's index, the pixel's number in its image, from the place in the window."""
    width = options["kernel"][1]
    place = index.astype(np.int64)
    rows, columns = np.divmod(place, width)
    top = np.arange(index.shape[2])[:, None] * options["stride"][0] - options["padding"][0]
    left = np.arange(index.shape[3]) * options["stride"][1] - options["padding"][1]
    return (rows + top) * x.shape[3] + columns + left


def check_max(harness, torch, close, x, options, dy):
    y, index = harness.compute("max_pool", [x], options)
    window = (options["kernel"], options["stride"], options["padding"])
    leaf = torch.tensor(x, requires_grad=True)
    theirs, places = torch.nn.functional.max_pool2d(leaf, *window, ceil_mode=options["ceil_mode"], return_indices=True)
    np.testing.assert_array_equal(y, theirs.detach().numpy())
    np.testing.assert_array_equal(flat_index(index, x, options), places.numpy())
    theirs.backward(torch.tensor(dy))
    (dx,) = harness.compute("max_pool_backward", [dy, index], options, [TensorSpec(x.shape, str(x.dtype))])
    close(dx, leaf.grad.numpy())
    return index


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_max_pool_is_pytorchs(harness, torch, close, name, dtype):
    shape, options = CASES[name]
    rng = np.random.default_rng(0)
    # Few distinct values, so that windows have ties.
    x = rng.integers(-3, 4, shape).astype(dtype)
    dy = rng.standard_normal(y_spec(x, options).shape).astype(dtype)
    index = check_max(harness, torch, close, x, options, dy)
    assert index.dtype == (np.int32 if name == "large window" else np.uint8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_average_pool_is_pytorchs(harness, torch, close, name, counted, dtype):
    shape, options = CASES[name]
    options = {**options, "count_include_pad": counted}
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype(dtype)
    check_average(harness, torch, close, x, options, rng)


def check_average(harness, torch, close, x, options, rng):
    window = (options["kernel"], options["stride"], options["padding"])
    leaf = torch.tensor(x.astype("float64"), requires_grad=True)
    theirs = torch.nn.functional.avg_pool2d(leaf, *window, options["ceil_mode"], options["count_include_pad"])
    (y,) = harness.compute("avg_pool", [x], options)
    close(y, theirs.detach().numpy())
    dy = rng.standard_normal(y.shape).astype(x.dtype)
    theirs.backward(torch.tensor(dy.astype("float64")))
    (dx,) = harness.compute("avg_pool_backward", [dy], options, [TensorSpec(x.shape, str(x.dtype))])
    close(dx, leaf.grad.numpy())


@QUICK
@given(data=st.data())
def test_any_pooling_is_pytorchs(harness, torch, close, data):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    kernel, stride = (draw(1, 5), draw(1, 5)), (draw(1, 4), draw(1, 4))
    padding = (draw(0, kernel[0] // 2), draw(0, kernel[1] // 2))
    size = [max(1, kernel[a] - 2 * padding[a]) + draw(0, 7) for a in (0, 1)]
    options = attrs(kernel, stride, padding, data.draw(st.booleans()))
    rng = np.random.default_rng(draw(0, 1000))
    x = rng.integers(-2, 3, (draw(1, 3), draw(1, 3), *size)).astype("float64")
    check_max(harness, torch, close, x, options, rng.standard_normal(y_spec(x, options).shape))
    check_average(harness, torch, close, x, {**options, "count_include_pad": data.draw(st.booleans())}, rng)


def test_a_nan_wins_and_of_two_the_first(harness):
    nan, inf = np.nan, np.inf
    x = np.array([[1, nan, 0, -inf, 3, 3], [nan, 5, inf, -inf, 3, 3]], np.float32).reshape(1, 1, 2, 6)
    y, index = harness.compute("max_pool", [x], attrs((2, 2), (2, 2)))
    np.testing.assert_array_equal(y.ravel(), [nan, inf, 3])
    np.testing.assert_array_equal(index.ravel(), [1, 2, 0])


def test_padding_never_wins_against_minus_infinity(harness):
    x = np.full((1, 1, 3, 3), -np.inf, np.float64)
    y, index = harness.compute("max_pool", [x], attrs((3, 3), (2, 2), (1, 1)))
    assert (y == -np.inf).all()
    np.testing.assert_array_equal(index.reshape(2, 2), [[4, 3], [1, 0]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 3, 7, 7), (64, 8, 1, 1), (1, 2, 250, 240), (40, 900, 1, 2)])
def test_global_average_pool_is_pytorchs(harness, torch, close, shape, dtype):
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape).astype(dtype)
    (y,) = harness.compute("global_avg_pool", [x])
    close(y, x.astype("float64").mean((2, 3), keepdims=True))
    leaf = torch.tensor(x, requires_grad=True)
    dy = rng.standard_normal(y.shape).astype(dtype)
    leaf.mean((2, 3), keepdim=True).backward(torch.tensor(dy))
    (dx,) = harness.compute("global_avg_pool_backward", [dy], {}, [TensorSpec(shape, dtype)])
    close(dx, leaf.grad.numpy())


@pytest.mark.parametrize("name", ["stem, ceil", "rectangular", "ceil, wide strides"])
def test_gradients_of_pooling_are_finite_differences(harness, slope, name):
    shape, options = CASES[name]
    rng = np.random.default_rng(3)
    x = rng.permutation(int(np.prod(shape))).reshape(shape).astype("float64")
    spec = [TensorSpec(shape, "float64")]
    y, index = harness.compute("max_pool", [x], options)
    dy = rng.standard_normal(y.shape)
    (dx,) = harness.compute("max_pool_backward", [dy, index], options, spec)
    slope(lambda a: harness.compute("max_pool", [a], options)[0] * dy, (x,), (dx,))
    for counted in (False, True):
        counting = {**options, "count_include_pad": counted}
        (dx,) = harness.compute("avg_pool_backward", [dy], counting, spec)
        slope(lambda a, counting=counting: harness.compute("avg_pool", [a], counting)[0] * dy, (x / 99,), (dx,))
    small = rng.standard_normal((2, 3, 1, 1))
    (dx,) = harness.compute("global_avg_pool_backward", [small], {}, spec := [TensorSpec((2, 3, 4, 5), "float64")])
    slope(lambda a: harness.compute("global_avg_pool", [a])[0] * small, (rng.standard_normal(spec[0].shape),), (dx,))
