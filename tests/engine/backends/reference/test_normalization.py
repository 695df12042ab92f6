"""Batch normalization and local response normalization of the numpy backend against PyTorch."""

import numpy as np
import pytest

from bathyal.engine.backends.reference import blocks
from bathyal.layers.graph import TensorSpec

SHAPES = [(2, 1, 1, 1), (4, 3, 5, 6), (64, 16, 2, 2), (2, 5, 1, 1), (1, 3, 200, 190), (3, 700, 7, 9), (5, 40000, 1, 1)]
LRN = [
    ((2, 7, 4, 5), 5, 1e-4, 0.75, 1.0),
    ((2, 7, 4, 5), 4, 0.5, 0.6, 2.0),
    ((1, 3, 2, 2), 9, 0.3, 1.3, 0.5),
    ((2, 1, 3, 3), 1, 0.7, 0.75, 1.0),
    ((2, 6, 3, 1), 2, 0.2, 0.5, 1.0),
    ((1, 600, 12, 11), 5, 1e-2, 0.75, 2.0),
]


def specs(*arrays):
    return [TensorSpec(a.shape, str(a.dtype)) for a in arrays]


def operands(shape, dtype, seed=0, mean=0.0):
    rng = np.random.default_rng(seed)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    weight, bias = (rng.standard_normal(shape[1]).astype(dtype) for _ in range(2))
    return (x * 2 + dtype_of(dtype)(mean)).astype(dtype), dy, weight, bias


def dtype_of(name):
    return np.dtype(name).type


def computed(harness, x, dy, weight, bias, eps=1e-5):
    """y, mean, var, dx, dweight, dbias."""
    vector = TensorSpec(weight.shape, str(x.dtype))
    options = {"eps": eps, "momentum": 0.1}
    y, mean, var = harness.compute("batch_norm_training", [x, weight, bias], options, [*specs(x), vector, vector])
    back = harness.compute("batch_norm_backward", [x, dy, weight, mean, var], options, specs(x, weight, bias))
    return y, mean, var, *back


def expected(torch, x, dy, weight, bias, eps=1e-5, dtype="float64"):
    leaves = [torch.tensor(a.astype(dtype), requires_grad=True) for a in (x, weight, bias)]
    y = torch.nn.functional.batch_norm(leaves[0], None, None, leaves[1], leaves[2], True, 0.1, eps)
    y.backward(torch.tensor(dy.astype(dtype)))
    var, mean = torch.var_mean(leaves[0].detach(), (0, 2, 3), correction=0)
    return [a.numpy() for a in (y.detach(), mean, var, *(leaf.grad for leaf in leaves))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_is_pytorchs(harness, torch, close, shape, dtype):
    given = operands(shape, dtype)
    # With two values per channel the image's gradient is a difference of nearly equal numbers: few digits are left.
    few = shape[0] * shape[2] * shape[3] == 2
    for index, (ours, theirs) in enumerate(zip(computed(harness, *given), expected(torch, *given), strict=True)):
        tolerance = {"float32": 1e-2, "float64": 1e-9}[dtype] if few and index == 3 else None
        close(ours, theirs, tolerance)


def test_batch_norm_keeps_its_digits_beside_a_large_mean(harness, torch):
    given = operands((8, 64, 16, 16), "float32", mean=3000.0)
    exact = expected(torch, *given)
    theirs = expected(torch, *given, dtype="float32")
    for ours, reference, right in zip(computed(harness, *given), theirs, exact, strict=True):
        assert np.linalg.norm(ours - right) <= 2 * np.linalg.norm(reference - right) + 1e-7 * np.linalg.norm(right)


def test_batch_norm_in_float32_errs_at_most_twice_as_much_as_pytorch(harness, torch):
    for shape in ((8, 16, 28, 28), (32, 8, 4, 4), (2, 500, 1, 1)):
        given = operands(shape, "float32", seed=2)
        exact = expected(torch, *given)
        theirs = expected(torch, *given, dtype="float32")
        for ours, reference, right in zip(computed(harness, *given), theirs, exact, strict=True):
            assert np.linalg.norm(ours - right) <= 2 * np.linalg.norm(reference - right) + 1e-8 * np.linalg.norm(right)


@pytest.mark.parametrize("shape", [(2, 3, 3, 4), (4, 2, 1, 1)])
def test_gradients_of_batch_norm_are_finite_differences(harness, slope, shape):
    x, dy, weight, bias = operands(shape, "float64", seed=3)
    slope(
        lambda *a: computed(harness, a[0], dy, a[1], a[2], eps=1e-2)[0] * dy,
        (x, weight, bias),
        computed(harness, x, dy, weight, bias, eps=1e-2)[3:],
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_running_statistics_and_inference_are_pytorchs(harness, torch, close, dtype):
    rng = np.random.default_rng(4)
    x, _, weight, bias = operands((3, 6, 4, 5), dtype)
    running = [rng.standard_normal(6).astype(dtype), rng.random(6).astype(dtype) + 0.5]
    right = [torch.tensor(a.astype("float64")) for a in running]
    wide = [torch.tensor(a.astype("float64")) for a in (x, weight, bias)]
    torch.nn.functional.batch_norm(wide[0], *right, wide[1], wide[2], True, 0.3, 1e-3)
    vector = TensorSpec((6,), dtype)
    made = harness.compute(
        "batch_norm_training", [x, weight, bias], {"eps": 1e-3, "momentum": 0.3}, [*specs(x), vector, vector]
    )
    inputs = [made[1], made[2], *running]
    graph, op = harness.operation("batch_norm_update", inputs, {"momentum": 0.3, "count": 60}, [], updates=[2, 3])
    moved = harness.run(graph, op, inputs).inputs[2:]
    for ours, theirs in zip(moved, right, strict=True):
        close(ours, theirs.numpy())
    (y,) = harness.compute("batch_norm_inference", [x, weight, bias, *moved], {"eps": 1e-3}, specs(x))
    theirs = torch.nn.functional.batch_norm(wide[0], *right, wide[1], wide[2], False, 0.3, 1e-3)
    close(y, theirs.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "size", "alpha", "beta", "k"), LRN)
def test_local_response_norm_is_pytorchs(harness, torch, close, slope, shape, size, alpha, beta, k, dtype):
    rng = np.random.default_rng(5)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    options = {"size": size, "alpha": alpha, "beta": beta, "k": k}
    leaf = torch.tensor(x.astype("float64"), requires_grad=True)
    y = torch.nn.functional.local_response_norm(leaf, size, alpha, beta, k)
    y.backward(torch.tensor(dy.astype("float64")))
    close(harness.compute("lrn", [x], options)[0], y.detach().numpy())
    (dx,) = harness.compute("lrn_backward", [x, dy], options, specs(x))
    close(dx, leaf.grad.numpy())
    if dtype == "float64" and x.size < 1000:
        slope(lambda a: harness.compute("lrn", [a], options)[0] * dy, (x,), (dx,))


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (7, 3, 5), (64, 16, 64), (2, 3, 70000), (3, 70000, 1), (2, 50, 900), (9, 9, 40)]
)
def test_blocks_cover_every_element_once_and_fit_the_buffer(shape):
    seen = np.zeros(shape, np.int8)
    largest, cut = blocks.channel_blocks(*shape)
    for block in cut:
        assert 0 < seen[block].size <= largest
        seen[block] += 1
    assert (seen == 1).all()
    assert largest <= blocks.BUFFER_ELEMENTS
