"""Every layer's shapes, against PyTorch's, and every mistake as an error that says layer, expected and actual."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

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
    He,
    Identity,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    Residual,
    Role,
    Sequential,
    Sigmoid,
    Tanh,
    evaluation_graph,
    forward_graph,
    training_graph,
)
from bathyal.memory.errors import BathyalError, ConfigError, GraphError, ShapeError

IMAGES = (2, 4, 8, 8)


def output_shape(layer: Layer, shape: tuple[int, ...] = IMAGES) -> tuple[int, ...]:
    graph = forward_graph(Sequential(layer), shape)
    return graph.tensors[graph.outputs[0]].shape


def torch_shape(call: Any) -> tuple[int, ...] | None:
    """Shape that PyTorch makes, or None where it refuses."""
    try:
        return tuple(call().shape)
    except RuntimeError:
        return None


def bathyal_shape(layer: Layer, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return output_shape(layer, shape)
    except ShapeError:
        return None


def test_convolution_shapes_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
    grid = itertools.product(range(1, 13), (1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (1, 2))
    sizes, refused = 0, 0
    for size, kernel, stride, padding, dilation in grid:
        shape = (2, 4, size, size + 3)
        x, w = torch.zeros(shape, device="meta"), torch.zeros((6, 2, kernel, 3), device="meta")

        def call(x: Any = x, w: Any = w, geometry: Any = (stride, padding, dilation)) -> Any:
            return torch.nn.functional.conv2d(x, w, None, *geometry, groups=2)

        expected = torch_shape(call)
        layer = Conv2d(6, (kernel, 3), stride=stride, padding=padding, dilation=dilation, groups=2)
        assert bathyal_shape(layer, shape) == expected, (shape, layer)
        sizes += expected is not None
        refused += expected is None
    assert sizes > 500 and refused > 50


@pytest.mark.parametrize("average", [False, True])
def test_pooling_shapes_are_those_of_pytorch(average: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
    grid = itertools.product(range(1, 13), (1, 2, 3, 5), (1, 2, 3, 4), (0, 1, 2), (False, True))
    sizes, refused = 0, 0
    for size, kernel, stride, padding, ceil_mode in grid:
        shape = (2, 4, size, size + 2)
        x = torch.zeros(shape, device="meta")

        def call(x: Any = x, window: Any = (kernel, stride, padding), ceil_mode: bool = ceil_mode) -> Any:
            function = torch.nn.functional.avg_pool2d if average else torch.nn.functional.max_pool2d
            return function(x, *window, ceil_mode=ceil_mode)

        expected = torch_shape(call)
        layer = (AvgPool2d if average else MaxPool2d)(kernel, stride, padding, ceil_mode=ceil_mode)
        assert bathyal_shape(layer, shape) == expected, (shape, layer)
        sizes += expected is not None
        refused += expected is None
    assert sizes > 500 and refused > 50


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (Conv2d(3, (3, 5), stride=(2, 1), padding=(0, 2)), (2, 3, 3, 8)),
        (MaxPool2d(2), (2, 4, 4, 4)),
        (AvgPool2d((1, 2), (1, 2)), (2, 4, 8, 4)),
        (GlobalAvgPool2d(), (2, 4, 1, 1)),
        (Flatten(), (2, 256)),
        (Sequential(Flatten(), Linear(7)), (2, 7)),
        (Branches(Identity(), Conv2d(3, 1)), (2, 7, 8, 8)),
        (Branches(Identity(), ReLU(), Tanh(), merge=Add()), IMAGES),
        (Residual(Conv2d(4, 3, padding=1)), IMAGES),
        (Residual(Conv2d(5, 3, stride=2, padding=1), Conv2d(5, 1, stride=2), ReLU()), (2, 5, 4, 4)),
        *((layer, IMAGES) for layer in (ReLU(), Sigmoid(), Tanh(), BatchNorm2d(), LocalResponseNorm(), Dropout(0.3))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_shape(layer: Layer, expected: tuple[int, ...]) -> None:
    assert output_shape(layer) == expected


@pytest.mark.parametrize(("window", "dtype"), [(16, "uint8"), (17, "int32")])
def test_max_pooling_keeps_one_index_per_output_in_the_smallest_type(window: int, dtype: str) -> None:
    graph = forward_graph(Sequential(MaxPool2d(window)), (1, 2, 40, 40))
    y, index = (graph.tensors[t] for t in graph.ops[0].outputs)
    assert (index.shape, index.dtype) == (y.shape, dtype)


def test_state_is_inferred_and_named_by_the_layers() -> None:
    net = Sequential(
        Conv2d(6, (3, 1), groups=2, name="first"),
        Residual(
            Sequential(Conv2d(6, 1, bias=False, name="conv"), BatchNorm2d(name="bn")),
            Sequential(Conv2d(6, 1), name="around"),
            ReLU(),
        ),
        Branches(ReLU(), Conv2d(2, 1)),
        Flatten(),
        Linear(5),
    )
    graph = forward_graph(net, IMAGES)
    state = {t.name: (t.shape, t.role) for t in graph.tensors if t.initializer is not None}
    assert state == {
        "first.weight": ((6, 2, 3, 1), Role.PARAMETER),
        "first.bias": ((6,), Role.PARAMETER),
        "1.conv.weight": ((6, 6, 1, 1), Role.PARAMETER),
        "1.bn.weight": ((6,), Role.PARAMETER),
        "1.bn.bias": ((6,), Role.PARAMETER),
        "1.bn.running_mean": ((6,), Role.BUFFER),
        "1.bn.running_var": ((6,), Role.BUFFER),
        "1.around.0.weight": ((6, 6, 1, 1), Role.PARAMETER),
        "1.around.0.bias": ((6,), Role.PARAMETER),
        "2.branch1.weight": ((2, 6, 1, 1), Role.PARAMETER),
        "2.branch1.bias": ((2,), Role.PARAMETER),
        "4.weight": ((5, 8 * 6 * 8), Role.PARAMETER),
        "4.bias": ((5,), Role.PARAMETER),
    }
    assert graph.parameters == sum(t.elements for t in graph.with_role(Role.PARAMETER))
    assert graph.state_bytes == 4 * (graph.parameters + 12)


def test_layers_are_frozen_values() -> None:
    assert Sequential(Conv2d(3, 1), name="a") == Sequential(Conv2d(3, 1), name="a")
    assert Conv2d(3, 1) != Conv2d(3, 1, stride=2)
    with pytest.raises(FrozenInstanceError):
        Conv2d(3, 1).stride = 2  # type: ignore[misc]


def build(*layers: Layer, shape: tuple[int, ...] = IMAGES) -> None:
    forward_graph(Sequential(*layers, name="net"), shape)


MISTAKES: list[tuple[str, Any, type[BathyalError], tuple[str, ...]]] = [
    (
        "kernel larger than the image",
        lambda: build(Conv2d(2, 9, name="stem")),
        ShapeError,
        ("stem (conv2d)", "9×9 kernel", "8×8 with padding (0, 0)", "larger images"),
    ),
    (
        "window larger than the image",
        lambda: build(Sequential(MaxPool2d(9), name="features")),
        ShapeError,
        ("features.0 (max_pool)", "9×9 window", "8×8", "fewer pooling layers"),
    ),
    (
        "padding of more than half the window",
        lambda: build(AvgPool2d(2, padding=2, name="pool")),
        ShapeError,
        ("pool (avg_pool)", "at most half the window (2, 2)", "(2, 2)"),
    ),
    (
        "Linear without Flatten",
        lambda: build(Linear(3, name="fc")),
        ShapeError,
        ("fc", "(N, F)", "(2, 4, 8, 8)", "Put Flatten() before it"),
    ),
    *(
        (
            f"{type(layer).__name__} after Flatten",
            lambda layer=layer: build(Flatten(), layer),
            ShapeError,
            ("1", "(N, C, H, W)", "(2, 256)", "before Flatten"),
        )
        for layer in (Conv2d(2, 1), BatchNorm2d(), LocalResponseNorm(), MaxPool2d(1), AvgPool2d(1), GlobalAvgPool2d())
    ),
    (
        "sum of unlike tensors",
        lambda: build(Residual(Conv2d(4, 3), name="block")),
        ShapeError,
        ("block (add)", "(2, 4, 6, 6)", "(2, 4, 8, 8)", "same stride and channels"),
    ),
    (
        "concatenation of unlike images",
        lambda: build(Branches(Conv2d(4, 3), Identity(), name="mix")),
        ShapeError,
        ("mix (concat)", "differ in channels alone", "(2, 4, 6, 6)", "(2, 4, 8, 8)"),
    ),
    (
        "one branch",
        lambda: build(Branches(Identity(), name="mix")),
        GraphError,
        ("mix", "at least two branches", "got 1"),
    ),
    (
        "name given twice",
        lambda: build(Conv2d(4, 1, name="conv"), Conv2d(4, 1, name="conv")),
        GraphError,
        ("conv.weight", "given once", "another name"),
    ),
    (
        "input channels that do not divide",
        lambda: build(Conv2d(6, 1, groups=3, name="conv")),
        ConfigError,
        ("conv", "input channels that divide into groups=3", "got 4"),
    ),
    (
        "output channels that do not divide",
        lambda: build(Conv2d(3, 1, groups=2, name="conv")),
        ConfigError,
        ("conv", "out_channels that divide into groups=2", "got 3"),
    ),
    (
        "no groups",
        lambda: build(Conv2d(3, 1, groups=0)),
        ConfigError,
        ("Conv2d", "groups as a whole number of at least 1", "got 0"),
    ),
    ("no filters", lambda: build(Conv2d(0, 1)), ConfigError, ("Conv2d", "out_channels", "got 0")),
    ("filters that are no number", lambda: build(Conv2d("8", 1)), ConfigError, ("out_channels", "'8'")),  # type: ignore[arg-type]
    ("half a filter", lambda: build(Conv2d(8.0, 1)), ConfigError, ("out_channels", "8.0")),  # type: ignore[arg-type]
    ("kernel of zero", lambda: build(Conv2d(3, 0)), ConfigError, ("Conv2d", "kernel_size", "at least 1", "got 0")),
    ("stride of zero", lambda: build(MaxPool2d(2, 0)), ConfigError, ("MaxPool2d", "stride", "got 0")),
    ("negative padding", lambda: build(Conv2d(3, 1, padding=-1)), ConfigError, ("padding", "at least 0", "-1")),
    ("three strides", lambda: build(Conv2d(3, 1, stride=(1, 1, 1))), ConfigError, ("stride", "(1, 1, 1)")),  # type: ignore[arg-type]
    ("no features", lambda: build(Flatten(), Linear(0, name="fc")), ConfigError, ("fc", "out_features", "got 0")),
    ("p above one", lambda: Dropout(1.5, name="drop"), ConfigError, ("'drop'", "p as a number from 0 to 1", "1.5")),
    ("negative p", lambda: Dropout(-0.1), ConfigError, ("p as a number from 0 to 1", "-0.1")),
    ("p that is not a number", lambda: Dropout(float("nan")), ConfigError, ("p as a number from 0 to 1", "nan")),
    ("negative eps", lambda: BatchNorm2d(eps=-1.0, name="bn"), ConfigError, ("'bn'", "eps", "-1.0")),
    ("momentum of two", lambda: BatchNorm2d(momentum=2.0), ConfigError, ("momentum as a number from 0 to 1", "2.0")),
    ("response over nothing", lambda: LocalResponseNorm(0), ConfigError, ("size as a whole number of at least 1", "0")),
    ("nesterov without momentum", lambda: SGD(0.1, nesterov=True), ConfigError, ("SGD", "momentum above 0", "0")),
    (
        "momentum of one",
        lambda: SGD(0.1, momentum=1.0),
        ConfigError,
        ("SGD", "momentum as a number from 0 to below 1", "1.0"),
    ),
    ("negative decay", lambda: SGD(0.1, weight_decay=-1.0), ConfigError, ("SGD", "weight_decay", "-1.0")),
    ("negative rate", lambda: SGD(-0.1), ConfigError, ("SGD", "learning_rate", "-0.1")),
    ("rate that is text", lambda: SGD("0.1"), ConfigError, ("SGD", "learning_rate as a number", "'0.1'")),  # type: ignore[arg-type]
    ("no momentum", lambda: SGD(0.1, momentum=None), ConfigError, ("SGD", "momentum as a number", "None")),  # type: ignore[arg-type]
    ("unknown fan", lambda: He("both"), ConfigError, ("He, fan", "one of in, out", "'both'")),
    (
        "class in Sequential",
        lambda: Sequential(Flatten(), ReLU),  # type: ignore[arg-type]
        GraphError,
        ("Sequential[1]", "ReLU() instead of ReLU"),
    ),
    ("class in Branches", lambda: Branches(ReLU, Identity()), GraphError, ("Branches[0]", "ReLU() instead of ReLU")),  # type: ignore[arg-type]
    ("class as merge", lambda: Branches(ReLU(), ReLU(), merge=Concat), GraphError, ("Branches", "Concat()", "class")),  # type: ignore[arg-type]
    (
        "class as activation",
        lambda: Residual(Identity(), activation=ReLU, name="block"),  # type: ignore[arg-type]
        GraphError,
        ("Residual 'block'.activation", "a layer", "ReLU() instead of ReLU"),
    ),
    ("class as network", lambda: forward_graph(ReLU, IMAGES), GraphError, ("network", "ReLU() instead")),  # type: ignore[arg-type]
    ("something else", lambda: Sequential(None), GraphError, ("Sequential[0]", "a layer", "None")),  # type: ignore[arg-type]
    ("no layer", lambda: build(), GraphError, ("net", "at least one layer")),
    ("unknown type", lambda: forward_graph(ReLU(), IMAGES, "float16"), GraphError, ("dtype", "float32", "'float16'")),
    ("no batch", lambda: build(ReLU(), shape=(8,)), ShapeError, ("input_shape", "(N, C, H, W)", "(8,)")),
    ("empty batch", lambda: build(ReLU(), shape=(0, 8)), ShapeError, ("input_shape", "positive", "(0, 8)")),
    (
        "images as logits",
        lambda: training_graph(forward_graph(Conv2d(3, 1), IMAGES), SGD()),
        ShapeError,
        ("loss", "(N, classes)", "(2, 3, 8, 8)", "End the network with Flatten() and Linear(classes)"),
    ),
    (
        "images as logits in evaluation",
        lambda: evaluation_graph(forward_graph(Conv2d(3, 1), IMAGES)),
        ShapeError,
        ("loss", "(N, classes)", "(2, 3, 8, 8)"),
    ),
    (
        "batch norm of one value",
        lambda: training_graph(
            forward_graph(Sequential(BatchNorm2d(name="bn"), Flatten(), Linear(2)), (1, 3, 1, 1)), SGD()
        ),
        ShapeError,
        ("bn (batch_norm)", "more than one value per channel", "(1, 3, 1, 1)", "larger batch"),
    ),
]


@pytest.mark.parametrize(("make", "error", "parts"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistake(make: Any, error: type[BathyalError], parts: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        make()
    assert type(caught.value) is error
    assert caught.value.where and caught.value.expected and caught.value.actual
    for part in parts:
        assert part in str(caught.value)
    where, *_ = parts
    if error is ShapeError:
        assert caught.value.where == where
