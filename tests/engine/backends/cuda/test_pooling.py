"""Pooling and response normalization of the CUDA backend, run on the CPU, against the numpy backend."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bathyal.layers.graph import TensorSpec
from bathyal.layers.pooling import pooled_size
from tests.support.cuda_programs import compute, same_bits, spec

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
IMAGES = [(2, 8, 3, 5), (1, 3, 7, 7), (2, 6, 1, 1), (1, 1, 1, 1), (3, 33, 2, 9), (1, 64, 17, 16), (40, 5, 30, 31)]


def attrs(kernel, stride, padding=(0, 0), ceil_mode=False):
    return {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}


CASES = {
    "2x2": ((3, 4, 8, 6), attrs((2, 2), (2, 2))),
    "stem": ((2, 3, 15, 14), attrs((3, 3), (2, 2), (1, 1))),
    "stem, ceil": ((2, 8, 16, 14), attrs((3, 3), (2, 2), (1, 1), True)),
    "overlapping": ((2, 4, 7, 6), attrs((3, 3), (1, 1), (1, 1))),
    "rectangular": ((2, 3, 9, 12), attrs((2, 5), (3, 1), (1, 2))),
    "ceil hangs over": ((2, 2, 5, 5), attrs((2, 2), (2, 2), (0, 0), True)),
    "ceil, wide strides": ((2, 12, 9, 7), attrs((3, 2), (4, 3), (1, 1), True)),
    "window is the image": ((2, 2, 4, 5), attrs((4, 5), (1, 1))),
    "skips pixels": ((2, 4, 9, 9), attrs((1, 2), (3, 4))),
    "one pixel": ((1, 1, 1, 1), attrs((1, 1), (1, 1))),
    "large window": ((1, 2, 20, 18), attrs((17, 17), (2, 2), (3, 3))),
    "large window, packs": ((1, 4, 20, 18), attrs((17, 17), (2, 2), (3, 3))),
    "one image of one channel": ((1, 1, 6, 7), attrs((3, 3), (2, 2))),
}


def values(shape, seed, unusual=True):
    """Few distinct values, so that windows have ties, among them zeros of both signs, infinities and NaN."""
    rng = np.random.default_rng(seed)
    made = rng.integers(-3, 4, shape).astype(np.float32)
    if unusual:
        for value, share in ((-0.0, 0.1), (np.inf, 0.03), (-np.inf, 0.1), (np.nan, 0.05)):
            made[rng.random(shape) < share] = value
    return made


def pooled(shape, options):
    sizes = zip(shape[2:], options["kernel"], options["stride"], options["padding"], strict=True)
    return (*shape[:2], *(pooled_size(*size, options["ceil_mode"]) for size in sizes))


def check_max(harness, shape, options, seed):
    x = values(shape, seed)
    index_type = "uint8" if np.prod(options["kernel"]) <= 256 else "int32"
    y, index = compute("max_pool", [x], options).outputs
    exact_y, exact_index = harness.compute("max_pool", [x], options)
    same_bits(y, exact_y)
    np.testing.assert_array_equal(index, exact_index)
    assert index.dtype == index_type
    dy = values(y.shape, seed + 1).astype(np.float32) * np.float32(0.3)
    outputs = [spec(x)]
    with np.errstate(all="ignore"):
        exact = harness.compute("max_pool_backward", [dy, index], options, outputs)[0]
    same_bits(compute("max_pool_backward", [dy, index], options, outputs).outputs[0], exact)


def check_average(harness, shape, options, counted, seed):
    options = {**options, "count_include_pad": counted}
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    same_bits(compute("avg_pool", [x], options).outputs[0], harness.compute("avg_pool", [x], options)[0])
    dy = rng.standard_normal(pooled(shape, options)).astype(np.float32)
    exact = harness.compute("avg_pool_backward", [dy], options, [spec(x)])[0]
    same_bits(compute("avg_pool_backward", [dy], options, [spec(x)]).outputs[0], exact)


@pytest.mark.parametrize("name", CASES)
def test_max_pool_has_the_bits_of_the_reference(harness, name):
    check_max(harness, *CASES[name], seed=0)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_average_pool_has_the_bits_of_the_reference(harness, name, counted):
    check_average(harness, *CASES[name], counted, seed=1)


@st.composite
def pools(draw):
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    options = attrs(kernel, stride, padding, draw(st.booleans()))
    shape = (draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4, 8])), *(draw(st.integers(1, 9)) for _ in "hw"))
    return shape, options


@QUICK
@given(pools(), st.booleans(), st.integers(0, 99))
def test_any_pooling_has_the_bits_of_the_reference(harness, case, counted, seed):
    shape, options = case
    if min(pooled(shape, options)) < 1:
        return
    check_max(harness, shape, options, seed)
    check_average(harness, shape, options, counted, seed)


@pytest.mark.parametrize("shape", [*IMAGES, (2, 2048, 7, 7), (1, 7, 300, 20)], ids=str)
def test_global_average_pool(harness, shape):
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32) + 1
    y = harness.compute("global_avg_pool", [x])[0]
    # Both sums are exact far below the rounding to float32, so that they differ by that alone, and hardly ever.
    np.testing.assert_allclose(compute("global_avg_pool", [x]).outputs[0], y, 1.3e-7)
    exact = harness.compute("global_avg_pool_backward", [y], {}, [spec(x)])[0]
    same_bits(compute("global_avg_pool_backward", [y], {}, [spec(x)]).outputs[0], exact)


RESPONSES = [
    {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 1.0},
    {"size": 4, "alpha": 0.3, "beta": 0.6, "k": 2.0},
    {"size": 1, "alpha": 1.0, "beta": 1.0, "k": 0.5},
    {"size": 300, "alpha": 2.0, "beta": 0.75, "k": 1.0},
]


@pytest.mark.parametrize("shape", [*IMAGES, (1, 600, 2, 1), (2, 96, 9, 7)], ids=str)
@pytest.mark.parametrize("options", RESPONSES, ids=lambda o: f"size {o['size']}")
def test_response_normalization(harness, close, shape, options):
    rng = np.random.default_rng(4)
    x, dy = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    outputs = [TensorSpec(shape, "float32")]
    close(compute("lrn", [x], options).outputs[0], harness.compute("lrn", [x], options)[0], 5e-7)
    exact = harness.compute("lrn_backward", [x, dy], options, outputs)[0]
    close(compute("lrn_backward", [x, dy], options, outputs).outputs[0], exact, 2e-6)


def test_response_normalization_keeps_a_nan_within_its_windows(harness):
    x = np.ones((1, 8, 2, 2), np.float32)
    x[0, 3, 0, 1] = np.nan
    options = {"size": 4, "alpha": 0.3, "beta": 0.6, "k": 2.0}
    for kind, inputs in (("lrn", [x]), ("lrn_backward", [x, np.ones_like(x)])):
        exact = harness.compute(kind, inputs, options, [spec(x)])[0]
        found = compute(kind, inputs, options, [spec(x)]).outputs[0]
        np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
