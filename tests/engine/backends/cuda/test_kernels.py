"""The CUDA backend's own kernels, run on the CPU, against the numpy backend."""

import itertools
from contextlib import nullcontext

import numpy as np
import pytest

from bathyal.engine.backends.cuda.backend import CudaBackend
from bathyal.engine.backends.cuda.graphs import CUDNN_GRAPHS
from bathyal.engine.backends.cuda.kernel_programs import PROGRAMS, bias_add, bias_gradient
from bathyal.engine.backends.cuda.op_request import CHANNELS_LAST, PLAIN, OpRequest
from bathyal.engine.backends.cuda.parts import PRODUCTS
from bathyal.engine.planning.lowering import lower
from bathyal.layers import (
    SGD,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    evaluation_graph,
    forward_graph,
    training_graph,
)
from bathyal.layers.graph import TensorSpec
from bathyal.layers.kinds import KINDS
from bathyal.memory.devices.host import HostMachine
from bathyal.memory.errors import ConfigError, DeviceError
from tests.support.cuda_library import CpuLibrary
from tests.support.cuda_programs import compute, logical, operand, request_for, run, same_bits, spec, store
from tests.support.every_layer import everything

SHAPES = [(2, 8, 3, 5), (1, 3, 7, 7), (3, 1, 5, 4), (2, 6, 1, 1), (1, 1, 1, 1), (5, 33, 2, 9), (2, 64, 17, 16)]
ROWS = [(1, 1), (3, 10), (4, 64), (7, 1001)]
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, -90.0, 90.0], np.float32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def special(*shape, seed=0):
    """Normal numbers among which lie all the unusual ones, as far as there is room."""
    values = normal(*shape, seed=seed)
    places = np.random.default_rng(seed + 1).permutation(values.size)[: SPECIAL.size]
    values.reshape(-1)[places] = SPECIAL[: places.size]
    return values


def test_each_kind_that_the_backend_claims_has_kernels():
    """A network with an operation that it does not claim is refused by that operation's name."""
    fusible = Sequential(
        Conv2d(5, 1), ReLU(), Residual(Conv2d(5, 1), activation=ReLU()), BatchNorm2d(), Sigmoid(), Flatten(), Linear(12)
    )
    met = set()
    for network, math in itertools.product((everything(), fusible), ("float32", "bf16")):
        backend = CudaBackend(CpuLibrary(), HostMachine(), math)
        forward = forward_graph(network, (3, 5, 33, 30))
        for plain in (training_graph(forward, SGD(momentum=0.9)), evaluation_graph(forward)):
            graph = backend.lower(plain)
            for op in graph.ops:
                if backend.computes(op.kind):
                    assert backend.kernels(graph, op), op.kind
                    met.add(op.kind)
            lacking = [op for op in graph.ops if not backend.computes(op.kind)]
            refusal = pytest.raises(ConfigError, match=rf"\({lacking[0].kind}\)") if lacking else nullcontext()
            with refusal:
                lower(plain, backend)
    claimed = {kind for kind in KINDS if CudaBackend.computes(kind)}
    assert claimed == met
    assert claimed == {*PROGRAMS, *PRODUCTS, *CUDNN_GRAPHS}


def test_every_operation_of_a_network(harness, catalogues, close):
    """All kinds in one training step, its evaluation and its prediction, with the values that they meet there."""
    met = set()
    for graph, op, values in catalogues["float32"].entries:
        if op.kind not in PROGRAMS:
            continue
        met.add(op.kind)
        attrs, inputs = {**op.attrs, "eps": 1e-5}, list(values)
        if op.kind == "batch_norm_update":
            inputs[1] = (1 / np.sqrt(values[1].astype(np.float64) + attrs["eps"])).astype(np.float32)
        updates = [op.inputs.index(t) for t in op.updates]
        found = compute(op.kind, inputs, attrs, [graph.tensors[t].spec for t in op.outputs], updates=updates)
        exact = harness.run(graph, op, values)
        written = [(found.inputs[i], exact.inputs[i]) for i in updates]
        for ours, theirs in [*zip(found.outputs, exact.outputs, strict=True), *written]:
            if ours.dtype == np.float32:
                close(ours, theirs, 1e-6)
            else:
                np.testing.assert_array_equal(ours, theirs)
    assert set(PROGRAMS) - met == {"add_relu", "batch_norm_relu_inference", "convert"}


@pytest.mark.parametrize("shape", [*SHAPES, *ROWS], ids=str)
@pytest.mark.parametrize(("kind", "tolerance"), [("relu", 0), ("sigmoid", 1e-6), ("tanh", 1e-6), ("add", 0)])
def test_elementwise(harness, kind, tolerance, shape):
    inputs = [special(*shape, seed=s) for s in range(2 if kind == "add" else 1)]
    with np.errstate(all="ignore"):
        exact = harness.compute(kind, inputs)[0]
    for alias in (None, *((0, i) for i in range(len(inputs)))):
        found = compute(kind, inputs, alias=alias).outputs[0]
        if tolerance:
            np.testing.assert_allclose(found, exact, tolerance, 1e-45)
        else:
            same_bits(found, exact)


@pytest.mark.parametrize("shape", [*SHAPES, *ROWS], ids=str)
@pytest.mark.parametrize("kind", ["relu_backward", "sigmoid_backward", "tanh_backward"])
def test_gradients_of_activations_have_the_bits_of_the_reference(harness, kind, shape):
    inputs, outputs = [special(*shape), special(*shape, seed=3)], [TensorSpec(shape, "float32")]
    with np.errstate(all="ignore"):
        exact = harness.compute(kind, inputs, {}, outputs)[0]
    for alias in (None, (0, 1), (0, 0)):
        same_bits(compute(kind, inputs, {}, outputs, alias=alias).outputs[0], exact)


@pytest.mark.parametrize("shape", [*SHAPES, *ROWS], ids=str)
def test_sum_and_relu_in_one(harness, shape):
    inputs, outputs = [special(*shape), special(*shape, seed=3)], [TensorSpec(shape, "float32")]
    with np.errstate(all="ignore"):
        exact = harness.compute("relu", harness.compute("add", inputs))[0]
    for alias in (None, (0, 1), (0, 0)):
        np.testing.assert_array_equal(compute("add_relu", inputs, {}, outputs, alias=alias).outputs[0], exact)


@pytest.mark.parametrize(("rows", "features"), ROWS)
def test_bias(harness, rows, features):
    y, bias = special(rows, features), normal(features)
    request = OpRequest("bias_add", (operand(spec(y)), operand(spec(bias))), (), {})
    left = run(bias_add(rows, features), request, [y, bias], updates=(0,)).inputs[0]
    with np.errstate(all="ignore"):
        same_bits(left, y + bias)


@pytest.mark.parametrize("shape", [*SHAPES, *ROWS, (700, 5), (2, 40, 80, 30)], ids=str)
def test_gradient_of_a_bias(shape):
    dy = normal(*shape) + 1
    channels = (shape[1],)
    request = OpRequest("bias_gradient", (operand(spec(dy)),), (operand(TensorSpec(channels, "float32")),), {})
    found = run(bias_gradient(shape), request, [dy]).outputs[0]
    axes = tuple(a for a in range(len(shape)) if a != 1)
    # Both sums are exact far below the rounding to float32, so that they differ by that alone, and hardly ever.
    np.testing.assert_allclose(found, dy.sum(axes, np.float64).astype(np.float32), 1.3e-7)


CHANNELS = [(4, 8), (3, 5), (1, 1, 1), (8, 6, 4), (32, 64)]


@pytest.mark.parametrize(
    ("image", "layout"),
    [((), PLAIN), *itertools.product([(1, 1), (3, 5), (7, 2)], [PLAIN, CHANNELS_LAST])],
    ids=str,
)
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
def test_concat_and_split(harness, channels, image, layout):
    parts = [special(3, c, *image, seed=c) for c in channels]
    layouts = [layout] * (len(parts) + 1)
    (whole,) = compute("concat", parts, layouts=layouts).outputs
    same_bits(whole, harness.compute("concat", parts)[0])
    for found, part in zip(
        compute("split", [whole], {}, [spec(p) for p in parts], layouts=layouts).outputs, parts, strict=True
    ):
        same_bits(found, part)


MOVED = [*SHAPES, (2, 70, 9, 11), (1, 32, 8, 4), (3, 9, 33, 1), (2, 8, 40, 40), (2, 40, 2, 4)]


@pytest.mark.parametrize("shape", MOVED, ids=str)
def test_changes_of_shape_and_layout(shape):
    x = special(*shape)
    rows = x.reshape(shape[0], -1)
    images, flat = TensorSpec(shape, "float32"), TensorSpec(rows.shape, "float32")
    for layout in (PLAIN, CHANNELS_LAST):
        same_bits(compute("flatten", [x], layouts=[layout, PLAIN]).outputs[0], rows)
        same_bits(compute("reshape", [rows], {}, [images], layouts=[PLAIN, layout]).outputs[0], x)
        for other in (PLAIN, CHANNELS_LAST):
            same_bits(compute("convert", [x], {}, [images], layouts=[layout, other]).outputs[0], x)
    assert flat.nbytes == images.nbytes


def test_what_moves_nothing_may_run_in_place():
    x = special(4, 6, 1, 1)
    same_bits(compute("flatten", [x], alias=(0, 0)).outputs[0], x.reshape(4, 6))
    x = special(4, 6, 3, 1)
    same_bits(compute("flatten", [x], layouts=[PLAIN, PLAIN], alias=(0, 0)).outputs[0], x.reshape(4, 18))


DROPPED = [*SHAPES, *ROWS, (2, 5, 8, 4), (3, 4, 1, 7), (2, 3, 3, 3), (1, 7, 13, 13), (2, 40, 7, 7), (33000,)]


@pytest.mark.parametrize("shape", DROPPED, ids=str)
@pytest.mark.parametrize(
    ("p", "key", "stream"), [(0.5, (11, 3), 0), (0.3, (-5, 2**62), 7), (0.0, (0, 0), 1), (0.99, (2**63 - 1, 1), 2**40)]
)
def test_dropout_keeps_what_the_cpu_keeps(harness, shape, p, key, stream):
    x, attrs = special(*shape), {"p": p, "stream": stream}
    inputs = [x, np.array(key)]
    outputs = [TensorSpec(shape, "float32")]
    with np.errstate(all="ignore"):
        exact = harness.compute("dropout_training", inputs, attrs, outputs)[0]
    for kind, alias in itertools.product(("dropout_training", "dropout_backward"), (None, (0, 0))):
        same_bits(compute(kind, inputs, attrs, outputs, alias=alias).outputs[0], exact)


@pytest.mark.parametrize("shape", [(1,), (7,), (64, 3, 3, 3), (10, 33)], ids=str)
@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay"),
    [(0.0, False, 0.0), (0.0, False, 1e-3), (0.9, False, 0.0), (0.9, False, 5e-4), (0.9, True, 0.0), (0.7, True, 0.01)],
)
def test_sgd_has_the_bits_of_the_reference(harness, shape, momentum, nesterov, decay):
    attrs = {"momentum": momentum, "weight_decay": decay, "nesterov": nesterov}
    tensors = [special(*shape, seed=s) for s in range(3 if momentum else 2)]
    scalars = np.array([0.1234567891, 3.0])
    updates = [0, *range(2, len(tensors))]
    graph, op = harness.operation("sgd_update", [*tensors, scalars], attrs, [], updates=updates)
    found = exact = [*tensors, scalars]
    for _ in range(3):
        with np.errstate(all="ignore"):
            exact = harness.run(graph, op, exact).inputs
        found = compute("sgd_update", found, attrs, [], updates=updates).inputs
        for ours, theirs in zip(found, exact, strict=True):
            same_bits(ours, theirs)


@pytest.mark.parametrize("channels", [1, 3, 64, 300])
def test_running_statistics_move_as_on_the_reference(harness, channels):
    rng = np.random.default_rng(channels)
    eps = 1e-5
    mean, running_mean, running_var = (
        normal(channels),
        normal(channels, seed=1),
        rng.uniform(0, 2, channels).astype(np.float32),
    )
    var = rng.uniform(0, 3, channels).astype(np.float32)
    var[0] = 0.0
    inverse = (1 / np.sqrt(var.astype(np.float64) + eps)).astype(np.float32)
    attrs = {"momentum": 0.1, "count": 50}
    graph, op = harness.operation(
        "batch_norm_update", [mean, var, running_mean, running_var], attrs, [], updates=[2, 3]
    )
    exact = harness.run(graph, op, [mean, var, running_mean, running_var]).inputs
    inputs = [mean, inverse, running_mean, running_var]
    found = compute("batch_norm_update", inputs, {**attrs, "eps": eps}, [], updates=(2, 3)).inputs
    same_bits(found[2], exact[2])
    # The inverse deviation was rounded once; twice that, relative to variance and eps, is what squaring makes of it.
    np.testing.assert_allclose(found[3], exact[3], 3e-7, 1e-12)
    inverse[-1] = np.nan
    assert np.isnan(compute("batch_norm_update", inputs, {**attrs, "eps": eps}, [], updates=(2, 3)).inputs[3][-1])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_normalization_by_running_statistics(harness, shape):
    rng = np.random.default_rng(1)
    channels = shape[1]
    vectors = [normal(channels, seed=s) for s in range(3)] + [rng.uniform(0, 3, channels).astype(np.float32)]
    inputs, attrs, outputs = [special(*shape), *vectors], {"eps": 1e-3, "momentum": 0.1}, [TensorSpec(shape, "float32")]
    with np.errstate(all="ignore"):
        exact = harness.compute("batch_norm_inference", inputs, attrs, outputs)[0]
        positive = harness.compute("relu", [exact])[0]
    for alias in (None, (0, 0)):
        same_bits(compute("batch_norm_inference", inputs, attrs, outputs, alias=alias).outputs[0], exact)
        found = compute("batch_norm_relu_inference", inputs, attrs, outputs, alias=alias).outputs[0]
        np.testing.assert_array_equal(found, positive)


@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (3, 4), (8, 10), (5, 1000), (2, 257), (300, 6)])
@pytest.mark.parametrize("unusual", [False, True])
def test_loss_counts_and_gradient(harness, rows, classes, unusual):
    logits = (4 * normal(rows, classes)).round(1)  # few digits, so that there are ties
    if unusual:
        logits[0, 0] = np.nan
        logits[rows // 2, classes // 2] = np.inf
        logits[-1] = -np.inf
    labels = np.random.default_rng(2).integers(0, classes, rows)
    scalars = np.array([0.1, 8.0])
    with np.errstate(all="ignore"):
        loss, correct = harness.compute("softmax_cross_entropy", [logits, labels])
        exact = harness.compute("softmax_cross_entropy_backward", [logits, labels, scalars], {}, [spec(logits)])[0]
    found = compute("softmax_cross_entropy", [logits, labels]).outputs
    np.testing.assert_allclose(found[0], loss, 1.3e-7, 1e-14)
    np.testing.assert_array_equal(found[1], correct)
    for alias in (None, (0, 0)):
        made = compute("softmax_cross_entropy_backward", [logits, labels, scalars], {}, [spec(logits)], alias=alias)
        np.testing.assert_allclose(made.outputs[0], exact, 1.3e-7, 1e-14)


def test_a_nan_ranks_before_every_label_but_its_own(harness):
    logits = normal(3, 5)
    logits[0] = [1, 2, np.nan, 0, 0]  # the label's logit is the largest number, and second to the NaN
    logits[1] = [np.nan, 2, 1, 0, 0]  # the label's logit is the NaN: all four others rank before it
    labels = np.array([1, 0, int(logits[2].argmax())])
    exact = harness.compute("softmax_cross_entropy", [logits, labels])[1]
    found = compute("softmax_cross_entropy", [logits, labels]).outputs[1]
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(found, [1, 3])


def test_what_the_kernels_do_not_take_is_refused():
    x = normal(2, 4, 3, 3)
    attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil_mode": False}
    with pytest.raises(DeviceError, match="channels-last images"):
        PROGRAMS["max_pool"](request_for("max_pool", [x], attrs, layouts=[PLAIN, CHANNELS_LAST, CHANNELS_LAST]))
    with pytest.raises(DeviceError, match="float32 or bfloat16 tensors"):
        PROGRAMS["add"](request_for("add", [x.astype(np.float64)] * 2))
    with pytest.raises(DeviceError, match="one shape and layout"):
        PROGRAMS["add"](request_for("add", [x, x], layouts=[PLAIN, CHANNELS_LAST, PLAIN]))
    with pytest.raises(DeviceError, match="a window of at most"):
        wide = normal(1, 1200, 1, 1)
        PROGRAMS["lrn_backward"](request_for("lrn_backward", [wide, wide], {"size": 1100, "alpha": 1.0}, [spec(wide)]))


def test_layouts_of_the_tests_undo_each_other():
    x = normal(2, 3, 4, 5)
    assert store(x, CHANNELS_LAST)[1] == x[0, 1, 0, 0]
    same_bits(logical(store(x, CHANNELS_LAST), x.shape, CHANNELS_LAST), x)
