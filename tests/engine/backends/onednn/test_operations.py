"""Every kind of operation that oneDNN computes, over shapes and arguments, against numpy and PyTorch."""

import random

import numpy as np
import pytest

from bathyal.engine.backends.onednn.recipes import RECIPES, computes
from bathyal.engine.planning.lowering import lower
from bathyal.layers import (
    SGD,
    Add,
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    Identity,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    Tanh,
    evaluation_graph,
    forward_graph,
    prediction_graph,
    training_graph,
)
from bathyal.layers.kinds import KINDS
from bathyal.memory.errors import ShapeError
from tests.support.every_layer import everything
from tests.support.lowered_graphs import Memory, check_operations
from tests.support.onednn_library import onednn_backend
from tests.support.random_networks import random_network

BACKEND = onednn_backend()
CLASSES = 7
END = (Flatten(), Linear(CLASSES))
CHANNELS = (3, 5, 8, 10, 16, 24, 32, 100)


def feeds(shape):
    rng = np.random.default_rng(sum(shape))
    return {
        "images": rng.standard_normal(shape).astype(np.float32),
        "labels": rng.integers(0, CLASSES, shape[0]),
        "scalars": np.array([0.05, 1.0]),
        "random_key": np.array([11, 2], np.int64),
    }


def graphs(network, shape):
    forward = forward_graph(network, shape)
    return training_graph(forward, SGD(0.05, momentum=0.9, weight_decay=1e-3)), evaluation_graph(forward)


def check(network, shape, make_graphs=graphs):
    """Every operation of all graphs; returns the kinds that were compared."""
    kinds = set()
    for graph in make_graphs(network, shape):
        kinds |= set(check_operations(graph, BACKEND, feeds(shape)))
    return kinds


def pair(rng, values):
    return rng.choice(values), rng.choice(values)


def random_convolution(rng):
    """A convolution of images or of blocked activations, with odd numbers everywhere."""
    channels = rng.choice(CHANNELS)
    groups = rng.choice([g for g in (1, 1, 2, 4, channels) if channels % g == 0])
    outputs = rng.choice(CHANNELS) if groups == 1 else groups * rng.choice((1, 2, 3, 8))
    window = [pair(rng, values) for values in ((1, 2, 3, 5), (1, 1, 2, 3), (0, 1, 2, 3), (1, 1, 2))]
    kernel, stride, padding, dilation = window
    convolution = Conv2d(
        outputs, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=rng.random() < 0.5
    )
    if rng.random() < 0.3:
        return Sequential(convolution, ReLU(), *END), channels
    return Sequential(Conv2d(channels, 1), BatchNorm2d(), convolution, BatchNorm2d(), *END), channels


@pytest.mark.parametrize("seed", range(60))
def test_random_convolutions(seed):
    rng = random.Random(seed)
    network, channels = random_convolution(rng)
    shape = (rng.choice((1, 2, 3)), channels, rng.randint(9, 12), rng.randint(9, 12))
    try:
        forward_graph(network, shape)
    except ShapeError as too_small:
        assert "fits in" in str(too_small)
        shape = (shape[0], channels, 15, 15)
    check(network, shape)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("bias", [True, False])
def test_depthwise_and_pointwise_convolutions(channels, bias):
    layers = (Conv2d(channels, 3, padding=1, groups=channels, bias=bias), ReLU(), Conv2d(2 * channels, 1, bias=bias))
    assert {"conv2d", "conv2d_backward_data", "conv2d_backward_weights"} <= check(
        Sequential(*layers, *END), (2, channels, 7, 6)
    )


def test_weights_of_one_shape_with_and_without_groups():
    layers = (Conv2d(16, 1), Conv2d(8, 3, padding=1, groups=2), ReLU(), Conv2d(8, 3, padding=1), Conv2d(8, 3, groups=2))
    check(Sequential(*layers, *END), (2, 16, 8, 8))
    check(Sequential(Conv2d(8, 3, padding=1), Conv2d(16, 1), Conv2d(8, 3, groups=2), *END), (2, 8, 8, 8))


@pytest.mark.parametrize("seed", range(60))
def test_random_poolings(seed):
    rng = random.Random(seed)
    kernel = pair(rng, (1, 2, 3, 5, 8))
    arguments = kernel, pair(rng, (1, 1, 2, 3)), tuple(rng.randint(0, k // 2) for k in kernel)
    ceil, channels = rng.random() < 0.6, rng.choice((3, 8, 10, 16, 20))
    pool = (
        MaxPool2d(*arguments, ceil_mode=ceil)
        if rng.random() < 0.5
        else AvgPool2d(*arguments, ceil_mode=ceil, count_include_pad=rng.random() < 0.7)
    )
    around = rng.choice(
        [((Conv2d(channels, 1),), (Conv2d(channels, 1),)), ((), (Conv2d(5, 1),)), ((Conv2d(9, 1),), ())]
    )
    check(Sequential(*around[0], pool, *around[1], *END), (2, channels, rng.randint(8, 13), rng.randint(8, 13)))


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("ceil", [True, False])
@pytest.mark.parametrize("size", [7, 8, 9, 10])
def test_means_of_windows_that_hang_over_are_those_of_pytorch(torch, close, counted, ceil, size):
    rng = np.random.default_rng(size)
    x = rng.standard_normal((2, 10, size, size + 1)).astype(np.float32)
    pool = AvgPool2d(3, 2, 1, ceil_mode=ceil, count_include_pad=counted)
    graph = lower(prediction_graph(forward_graph(Sequential(Identity(), pool), x.shape)), BACKEND)
    memory = Memory(graph, BACKEND)
    memory.write(graph.ops[0].inputs[0], x)
    for op in graph.ops:
        memory.run(op)
    expected = torch.nn.functional.avg_pool2d(torch.from_numpy(x), 3, 2, 1, ceil, counted)
    close(memory.read(graph.outputs[0]), expected.numpy())


def test_what_the_library_would_count_otherwise_goes_to_the_reference_backend():
    pool = AvgPool2d(3, 2, 1, ceil_mode=True)
    for size, own in ((8, False), (9, True)):
        graph = lower(
            training_graph(forward_graph(Sequential(Conv2d(16, 1), pool, *END), (2, 3, size, 9)), SGD()), BACKEND
        )
        pools = [op for op in graph.ops if op.kind in ("avg_pool", "avg_pool_backward")]
        assert len(pools) == 2
        for op in pools:
            specs = [[graph.tensors[t].spec for t in ids] for ids in (op.inputs, op.outputs)]
            assert computes(op.kind, *specs, op.attrs) == own
            assert (BACKEND.kernels(graph, op)[0].name == "taps") != own
            # The reference backend reads plain layouts alone.
            assert all((graph.tensors[t].layout == "") != own for t in (*op.inputs, *op.outputs))


LAYERS = (
    ReLU(),
    Sigmoid(),
    Tanh(),
    Dropout(0.3),
    BatchNorm2d(),
    LocalResponseNorm(3),
    MaxPool2d(2),
    AvgPool2d(2),
    AvgPool2d(3, 2, 1, ceil_mode=True),
    GlobalAvgPool2d(),
    Flatten(),
    Conv2d(6, 3),
    Residual(Conv2d(10, 3, padding=1)),
    Residual(ReLU()),
    Residual(Conv2d(10, 1), activation=ReLU()),
    Branches(Identity(), Conv2d(4, 1), merge=Concat()),
    Branches(Identity(), Conv2d(10, 1), Identity(), merge=Add()),
    Branches(Conv2d(10, 1), Identity(), BatchNorm2d(), merge=Add()),
    Branches(Conv2d(7, 1), Sequential(Conv2d(7, 1), Tanh()), merge=Add()),
    Branches(Sequential(Conv2d(7, 1), Sigmoid()), Conv2d(7, 1), merge=Add()),
)


def networks_around(layer):
    """Networks with their shapes: the layer on images, behind a convolution, and between more."""
    after = () if isinstance(layer, Flatten) else (Conv2d(5, 1), ReLU())
    return (
        (Sequential(layer, *END), (2, 10, 9, 8)),
        (Sequential(Conv2d(10, 1), layer, *END), (2, 10, 9, 8)),
        (Sequential(Conv2d(10, 1), BatchNorm2d(), layer, *after, *END), (2, 3, 9, 8)),
    )


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_every_kind_of_layer_on_images_and_on_blocked_activations(layer):
    for network, shape in networks_around(layer):
        check(network, shape)


def test_the_list_of_layers_reaches_every_recipe_and_every_operation_of_a_layer():
    """The recipes by what the backend makes of the networks, the other kinds by the layers' forward graphs."""
    networks = [case for layer in LAYERS for case in networks_around(layer)]
    lowered = {op.kind for case in networks for graph in graphs(*case) for op in lower(graph, BACKEND).ops}
    assert set(RECIPES) <= lowered
    forward = {op.kind for case in networks for op in forward_graph(*case).ops}
    assert {op.kind for op in forward_graph(everything(), (3, 5, 33, 30)).ops} <= forward


@pytest.mark.parametrize("features", [(1, 1), (3, 5), (10, 7), (33, 16), (100, 130)])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_linear_layers_of_odd_sizes(features, batch):
    inputs, outputs = features
    network = Sequential(Linear(outputs), ReLU(), Linear(outputs, bias=False), Linear(CLASSES))
    kinds = check(network, (batch, inputs))
    assert {"linear", "linear_backward_data", "linear_backward_weights", "relu", "relu_backward"} <= kinds


def all_graphs(network, shape):
    forward = forward_graph(network, shape)
    optimizers = (SGD(0.05), SGD(0.05, momentum=0.9, nesterov=True))
    return (*graphs(network, shape), *(training_graph(forward, o) for o in optimizers), prediction_graph(forward))


@pytest.mark.parametrize("seed", range(20))
def test_random_networks(seed):
    check(random_network(seed), (3, 3, 8, 8), all_graphs)


def test_together_the_networks_reach_every_recipe():
    layers = (
        Conv2d(8, 1),
        BatchNorm2d(),
        ReLU(),
        AvgPool2d(2),
        ReLU(),
        BatchNorm2d(),
        MaxPool2d(2),
        Residual(Conv2d(8, 1), activation=ReLU()),
        Residual(Conv2d(8, 1)),
        GlobalAvgPool2d(),
    )
    assert set(RECIPES) - {"global_avg_pool_backward"} <= check(Sequential(*layers, *END), (2, 10, 9, 8))
    assert "global_avg_pool_backward" in check(Sequential(*layers, *END), (2, 10, 9, 8))


@pytest.mark.parametrize("shift", [1, 2, 5, 63])
def test_results_do_not_depend_on_addresses(shift):
    layers = (
        Conv2d(24, 3),
        BatchNorm2d(),
        ReLU(),
        MaxPool2d(2),
        AvgPool2d(2),
        Residual(Conv2d(24, 1)),
        GlobalAvgPool2d(),
    )
    graph = lower(training_graph(forward_graph(Sequential(*layers, *END), (2, 10, 11, 9)), SGD(momentum=0.9)), BACKEND)
    results = []
    for place in (0, shift):
        memory = Memory(graph, BACKEND, place)
        rng = np.random.default_rng(0)
        for tensor in graph.tensors:
            if tensor.dtype == "float32":
                memory.write(tensor.id, rng.uniform(0.1, 1, tensor.shape).astype(np.float32))
        for tensor in graph.tensors:
            if tensor.name in feeds((2, 10, 11, 9)):
                memory.write(tensor.id, feeds((2, 10, 11, 9))[tensor.name])
        for op in graph.ops:
            memory.run(op)
        results.append([memory.content(t.id).copy() for t in graph.tensors])
    for tensor, a, b in zip(graph.tensors, *results, strict=True):
        assert (a == b).all(), tensor.name


ALIASES = [(kind, output, source) for kind in RECIPES for output, source in KINDS[kind].inplace]


@pytest.mark.parametrize(("kind", "output", "source"), ALIASES)
@pytest.mark.parametrize("blocked", [True, False])
def test_outputs_may_overwrite_inputs_where_the_kind_allows_it(kind, output, source, blocked):
    layers = (
        *([Conv2d(10, 1)] if blocked else []),
        Residual(Sequential(ReLU(), BatchNorm2d())),
        Residual(Sequential(BatchNorm2d(), ReLU()), activation=ReLU()),
        Conv2d(4, 1),
    )
    forward = forward_graph(Sequential(*layers, *END), (2, 10, 9, 7))
    graph = lower(evaluation_graph(forward) if kind.endswith("inference") else training_graph(forward, SGD()), BACKEND)
    found = [op for op in graph.ops if op.kind == kind]
    if not found:
        # Nobody wants the gradient of images.
        assert not blocked and kind.endswith("backward")
        return
    op = found[0]
    memory = Memory(graph, BACKEND)
    rng = np.random.default_rng(1)
    values = {t: rng.uniform(-1, 1, graph.tensors[t].shape).astype(np.float32) for t in op.inputs}
    for t in op.inputs:
        if graph.tensors[t].layout.startswith("mask"):
            memory.content(t)[:] = rng.integers(0, 2, graph.tensors[t].nbytes)
            del values[t]
    results = []
    for shared in (False, True):
        for t, v in values.items():
            memory.write(t, np.abs(v) if graph.tensors[t].name.endswith("var") else v)
        places = [memory.addresses[t] for t in (*op.inputs, *op.outputs)]
        if shared:
            assert graph.tensors[op.outputs[output]].nbytes == graph.tensors[op.inputs[source]].nbytes
            places[len(op.inputs) + output] = places[source]
        BACKEND.bind(graph, op, 0, False, memory.arena)([*places, memory.workspace])
        results.append(
            [
                memory.arena.memory[p : p + graph.tensors[t].nbytes].copy()
                for p, t in zip(places[len(op.inputs) :], op.outputs, strict=True)
            ]
        )
    for plain, overwritten in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, overwritten)


@pytest.mark.parametrize("shape", [(3, 10), (2, 3, 5), (2, 3, 4, 2, 2), (2, 1, 3, 1, 2, 3)], ids=str)
def test_element_wise_operations_take_any_number_of_dimensions(shape):
    network = Sequential(ReLU(), Residual(ReLU()), Tanh(), Flatten(), Linear(12), Residual(ReLU()), Linear(CLASSES))
    assert {"relu", "add", "relu_backward"} <= check(network, shape)
