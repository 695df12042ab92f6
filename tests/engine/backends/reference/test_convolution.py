"""Convolution and fully connected layers of the numpy backend against PyTorch, and their kernels against each other."""

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bathyal.engine.backends.reference import columns as columns_module
from bathyal.engine.backends.reference.windows import convolution_windows
from bathyal.layers.graph import TensorSpec

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def attrs(stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


CASES = {
    "3x3": ((2, 4, 7, 6), (5, 4, 3, 3), attrs(padding=(1, 1))),
    "3x3 unpadded": ((2, 4, 7, 6), (5, 4, 3, 3), attrs()),
    "stride 2": ((3, 4, 9, 8), (6, 4, 3, 3), attrs((2, 2), (1, 1))),
    "7x7 stem": ((2, 3, 23, 22), (8, 3, 7, 7), attrs((2, 2), (3, 3))),
    "rectangular": ((2, 3, 9, 12), (4, 3, 1, 5), attrs((1, 3), (0, 2))),
    "rectangular kernel and padding": ((2, 3, 9, 5), (4, 3, 4, 2), attrs((3, 1), (2, 0), (1, 2))),
    "dilated": ((2, 3, 11, 10), (4, 3, 3, 3), attrs((1, 1), (2, 2), (2, 2))),
    "dilated, strided": ((2, 2, 14, 11), (2, 2, 3, 2), attrs((2, 3), (1, 4), (3, 2))),
    "groups": ((2, 6, 7, 7), (9, 2, 3, 3), attrs(padding=(1, 1), groups=3)),
    "depthwise": ((2, 6, 7, 7), (6, 1, 3, 3), attrs(padding=(1, 1), groups=6)),
    "depthwise, twice": ((2, 4, 6, 7), (8, 1, 3, 3), attrs((2, 2), (1, 1), groups=4)),
    "1x1": ((3, 5, 6, 7), (8, 5, 1, 1), attrs()),
    "1x1 groups": ((3, 6, 4, 4), (8, 3, 1, 1), attrs(groups=2)),
    "1x1 stride 2": ((3, 5, 7, 6), (8, 5, 1, 1), attrs((2, 2))),
    "1x1 padded": ((2, 5, 3, 4), (4, 5, 1, 1), attrs(padding=(1, 2))),
    "kernel is the image": ((2, 3, 4, 5), (6, 3, 4, 5), attrs()),
    "more padding than image": ((2, 2, 1, 2), (3, 2, 3, 3), attrs((2, 2), (4, 3))),
    "stride skips pixels": ((2, 2, 11, 11), (3, 2, 2, 2), attrs((4, 5))),
    "one of everything": ((1, 1, 1, 1), (1, 1, 1, 1), attrs()),
    "one pixel left": ((2, 8, 3, 3), (4, 8, 3, 3), attrs()),
}


def operands(torch, shape, filters, options, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x, weight, bias = (rng.standard_normal(s).astype(dtype) for s in (shape, filters, filters[:1]))
    y = convolve(torch, options, x, weight, bias)
    return x, weight, bias, rng.standard_normal(y.shape).astype(dtype)


def convolve(torch, options, x, weight, bias):
    tensors = [torch.tensor(a) for a in (x, weight, bias)]
    geometry = (options["stride"], options["padding"], options["dilation"], options["groups"])
    return torch.nn.functional.conv2d(*tensors, *geometry).numpy()


def expected(torch, options, x, weight, bias, dy, dtype="float64"):
    leaves = [torch.tensor(a.astype(dtype), requires_grad=True) for a in (x, weight, bias)]
    geometry = (options["stride"], options["padding"], options["dilation"], options["groups"])
    y = torch.nn.functional.conv2d(*leaves, *geometry)
    y.backward(torch.tensor(dy.astype(dtype)))
    return [y.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves)]


def computed(harness, options, x, weight, bias, dy, **choice):
    """Output, and gradients of image, weight and bias."""
    specs = [TensorSpec(a.shape, str(a.dtype)) for a in (x, weight, bias)]
    (y,) = harness.compute("conv2d", [x, weight, bias], options, **choice)
    (dx,) = harness.compute("conv2d_backward_data", [dy, weight], options, specs[:1], **choice)
    dw, db = harness.compute("conv2d_backward_weights", [x, dy], options, specs[1:], **choice)
    return y, dx, dw, db


def count_kernels(harness, x, weight, options):
    return [k.name for k in harness.kernels(*harness.operation("conv2d", [x, weight], options))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_convolution_is_pytorchs_with_every_kernel(harness, torch, close, name, dtype):
    shape, filters, options = CASES[name]
    given_arrays = operands(torch, shape, filters, options, dtype)
    exact = expected(torch, options, *given_arrays)
    first = None
    for kernel in range(len(count_kernels(harness, *given_arrays[:2], options))):
        made = computed(harness, options, *given_arrays, kernel=kernel)
        for ours, theirs in zip(made, exact, strict=True):
            close(ours, theirs)
        first = first or made
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, made, strict=True))


@pytest.mark.parametrize("name", ["3x3", "groups", "1x1", "stride 2"])
def test_without_bias_nothing_else_changes(harness, torch, name):
    shape, filters, options = CASES[name]
    x, weight, bias, dy = operands(torch, shape, filters, options, "float32")
    zero = np.zeros_like(bias)
    (y,) = harness.compute("conv2d", [x, weight], options)
    (dw,) = harness.compute("conv2d_backward_weights", [x, dy], options, [TensorSpec(filters, "float32")])
    with_zero = computed(harness, options, x, weight, zero, dy)
    np.testing.assert_array_equal(y, with_zero[0])
    np.testing.assert_array_equal(dw, with_zero[2])


@QUICK
@given(data=st.data())
def test_any_convolution_is_pytorchs(harness, torch, close, data):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    groups = draw(1, 3)
    kernel, stride, dilation = ((draw(1, 4), draw(1, 4)), (draw(1, 3), draw(1, 3)), (draw(1, 3), draw(1, 3)))
    padding = (draw(0, 4), draw(0, 4))
    least = [max(1, dilation[a] * (kernel[a] - 1) + 1 - 2 * padding[a]) for a in (0, 1)]
    shape = (draw(1, 4), groups * draw(1, 3), least[0] + draw(0, 6), least[1] + draw(0, 6))
    filters = (groups * draw(1, 3), shape[1] // groups, *kernel)
    options = attrs(stride, padding, dilation, groups)
    given_arrays = operands(torch, shape, filters, options, "float64", seed=1)
    exact = expected(torch, options, *given_arrays)
    first = None
    for kernel_number in range(len(count_kernels(harness, *given_arrays[:2], options))):
        made = computed(harness, options, *given_arrays, kernel=kernel_number)
        for ours, theirs in zip(made, exact, strict=True):
            close(ours, theirs)
        first = first or made
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, made, strict=True))


def test_kernels_are_image_then_batch_then_rows_and_direct_needs_no_columns(harness):
    x, weight = np.zeros((8, 16, 8, 8), np.float32), np.zeros((16, 16, 3, 3), np.float32)
    graph, op = harness.operation("conv2d", [x, weight], attrs(padding=(1, 1)))
    image, batch = harness.kernels(graph, op)
    assert (image.name, batch.name) == ("image", "batch")
    columns = 16 * 9 * 64 * 4
    assert columns <= image.workspace_bytes <= 1.3 * columns
    assert 8 * columns <= batch.workspace_bytes <= 8 * image.workspace_bytes
    graph, op = harness.operation("conv2d", [x, np.zeros((16, 16, 1, 1), np.float32)], attrs())
    assert [(k.name, k.workspace_bytes) for k in harness.kernels(graph, op)] == [("direct", 0)]
    large = np.zeros((2, 64, 224, 224), np.float32)
    graph, op = harness.operation("conv2d", [large, np.zeros((64, 64, 3, 3), np.float32)], attrs(padding=(1, 1)))
    kernels = {k.name: k.workspace_bytes for k in harness.kernels(graph, op)}
    assert list(kernels) == ["image", "rows"]
    assert kernels["image"] > 115e6 and kernels["rows"] < 6 * 2**20


@pytest.mark.parametrize("name", ["3x3", "stride 2", "dilated, strided", "groups", "rectangular", "1x1 stride 2"])
def test_strips_of_rows_are_pytorchs(harness, torch, close, monkeypatch, name):
    shape, filters, options = CASES[name]
    monkeypatch.setattr(columns_module, "STRIP_BYTES", 500)
    given_arrays = operands(torch, (shape[0], shape[1], 3 * shape[2], shape[3]), filters, options, "float64", seed=3)
    harness.backend._kernels.clear()
    names = count_kernels(harness, *given_arrays[:2], options)
    assert names[-1] == "rows"
    exact = expected(torch, options, *given_arrays)
    for ours, theirs in zip(computed(harness, options, *given_arrays, kernel=len(names) - 1), exact, strict=True):
        close(ours, theirs)
    harness.backend._kernels.clear()


def test_batches_that_are_cut_into_unequal_groups_give_the_same_bits(harness, torch, monkeypatch):
    shape, filters, options = (7, 4, 7, 6), (5, 4, 3, 3), attrs(padding=(1, 1))
    monkeypatch.setattr(columns_module, "BATCH_BYTES", 3 * 4 * 9 * 42 * 4)
    harness.backend._kernels.clear()
    given_arrays = operands(torch, shape, filters, options, "float32", seed=4)
    windows = convolution_windows(shape[2:], filters[2:], options)
    assert [s.stop - s.start for s in columns_module.tilings(windows, 7, 4, 1, "float32")[1].images] == [3, 3, 1]
    image, batch = (computed(harness, options, *given_arrays, kernel=k) for k in (0, 1))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(image, batch, strict=True))
    harness.backend._kernels.clear()


def test_large_strips_allocate_nothing_and_are_right(harness, torch, close):
    shape, filters, options = (2, 16, 120, 120), (8, 16, 3, 3), attrs((1, 1), (1, 1))
    given_arrays = operands(torch, shape, filters, options, "float32", seed=5)
    assert count_kernels(harness, *given_arrays[:2], options) == ["image", "batch", "rows"]
    peaks = []

    def watch(launch, addresses):
        launch(addresses)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            launch(addresses)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        finally:
            tracemalloc.stop()

    gc.collect()
    made = computed(harness, options, *given_arrays, kernel=2, watch=watch)
    assert len(peaks) == 3 and max(peaks) <= 16 * 1024
    for ours, theirs in zip(made, expected(torch, options, *given_arrays), strict=True):
        close(ours, theirs)


def test_float32_errors_are_at_most_twice_pytorchs(harness, torch):
    for shape, filters, options in (
        ((4, 32, 28, 28), (32, 32, 3, 3), attrs(padding=(1, 1))),
        ((16, 64, 7, 7), (96, 64, 1, 1), attrs()),
    ):
        given_arrays = operands(torch, shape, filters, options, "float32", seed=6)
        exact = expected(torch, options, *given_arrays)
        theirs = expected(torch, options, *given_arrays, dtype="float32")
        for ours, reference, right in zip(computed(harness, options, *given_arrays), theirs, exact, strict=True):
            assert np.linalg.norm(ours - right) <= 2 * np.linalg.norm(reference - right)


@pytest.mark.parametrize("name", ["3x3", "dilated, strided", "groups", "1x1", "rectangular"])
def test_gradients_of_convolution_are_finite_differences(harness, torch, slope, name):
    shape, filters, options = CASES[name]
    x, weight, bias, dy = operands(torch, shape, filters, options, "float64", seed=7)

    def weighted(x, weight, bias):
        return harness.compute("conv2d", [x, weight, bias], options)[0] * dy

    slope(weighted, (x, weight, bias), computed(harness, options, x, weight, bias, dy)[1:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 3), (64, 1, 5), (5, 20, 1), (33, 129, 65)])
def test_linear_is_pytorchs(harness, torch, close, slope, shape, dtype):
    images, features, outputs = shape
    rng = np.random.default_rng(8)
    x, weight, bias, dy = (
        rng.standard_normal(s).astype(dtype)
        for s in ((images, features), (outputs, features), (outputs,), (images, outputs))
    )
    specs = [TensorSpec(a.shape, dtype) for a in (x, weight, bias)]
    leaves = [torch.tensor(a.astype("float64"), requires_grad=True) for a in (x, weight, bias)]
    y = torch.nn.functional.linear(*leaves)
    y.backward(torch.tensor(dy.astype("float64")))
    gradients = [
        *harness.compute("linear_backward_data", [dy, weight], {}, specs[:1]),
        *harness.compute("linear_backward_weights", [x, dy], {}, specs[1:]),
    ]
    close(harness.compute("linear", [x, weight, bias])[0], y.detach().numpy())
    close(harness.compute("linear", [x, weight])[0], (y - leaves[2]).detach().numpy())
    for ours, leaf in zip(gradients, leaves, strict=True):
        close(ours, leaf.grad.numpy())
    (alone,) = harness.compute("linear_backward_weights", [x, dy], {}, specs[1:2])
    np.testing.assert_array_equal(alone, gradients[1])
    if dtype == "float64":
        slope(lambda *a: harness.compute("linear", a)[0] * dy, (x, weight, bias), gradients)
