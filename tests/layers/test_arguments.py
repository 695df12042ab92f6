"""Arguments of everything that is made of arguments: PyTorch's spelling, and values that make no sense, by kind."""

import copy
import inspect
import math
import pickle
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

import bathyal as bt
from bathyal.layers.builder import forward_graph
from bathyal.memory.arguments import LARGEST_SIZE, Maybe, Number, Pair, Switch, Whole

SPELLINGS = [
    (lambda: bt.Conv2d(3, 16, 3), "Conv2d(16, 3)", "input channels are inferred"),
    (lambda: bt.Conv2d(3, 16, 3, 2, 1), "Conv2d(16, 3, stride=2, padding=1)", "in_channels, out_channels"),
    (lambda: bt.Conv2d(3, 16, kernel_size=3), "Conv2d(16, 3)", "input channels are inferred"),
    (lambda: bt.Conv2d(in_channels=3, out_channels=16, kernel_size=(3, 1)), "Conv2d(16, (3, 1))", "inferred"),
    (lambda: bt.Conv2d(16, 3, padding_mode="reflect"), "Conv2d(16, 3)", "there is no padding_mode"),
    (lambda: bt.BatchNorm2d(16), "BatchNorm2d()", "channels are inferred"),
    (lambda: bt.BatchNorm2d(16, 1e-3, 0.2), "BatchNorm2d(eps=0.001, momentum=0.2)", "num_features, eps, momentum"),
    (lambda: bt.BatchNorm2d(num_features=16), "BatchNorm2d()", "channels are inferred"),
    (lambda: bt.Linear(16, 10), "Linear(10)", "input features are inferred"),
    (lambda: bt.Linear(16, 10, False), "Linear(10, bias=False)", "input features are inferred"),
    (lambda: bt.Linear(16, out_features=10), "Linear(10)", "input features are inferred"),
    (lambda: bt.ReLU(inplace=True), "ReLU()", "the planner decides"),
    (lambda: bt.ReLU(True), "ReLU()", "the planner decides"),
    (lambda: bt.Dropout(0.5, True), "Dropout(0.5)", "the planner decides"),
    (lambda: bt.MaxPool2d(3, 2, 1, 2), "MaxPool2d(3, 2, 1)", "there is no dilation"),
    (lambda: bt.AvgPool2d(3, 2, 1, True), "AvgPool2d(3, 2, 1, ceil_mode=True)", "given by name"),
    (lambda: bt.GlobalAvgPool2d(1), "GlobalAvgPool2d()", "there is no output_size"),
    (lambda: bt.Flatten(1), "Flatten()", "there is no start_dim"),
    (lambda: bt.SGD(0.1, 0.9), "SGD(0.1, momentum=0.9)", "given by name"),
    (lambda: bt.SGD([np.ones(2)], lr=0.1), "SGD(0.1)", "the trainer hands the parameters over"),
    (lambda: bt.SGD(lr=0.1, momentum=0.9, dampening=0), "SGD(0.1, momentum=0.9)", "there is no dampening"),
]


@pytest.mark.parametrize(("make", "written", "reason"), SPELLINGS, ids=[s[1] + str(i) for i, s in enumerate(SPELLINGS)])
def test_pytorch_spelling_is_refused_with_what_it_becomes(make, written, reason):
    with pytest.raises(bt.ConfigError) as caught:
        make()
    assert str(caught.value).endswith(f": write {written}.")
    assert reason in str(caught.value)


LAYERS = {
    "Conv2d": lambda **given: bt.Conv2d(**{"out_channels": 4, "kernel_size": 3, **given}),
    "Linear": lambda **given: bt.Linear(**{"out_features": 4, **given}),
    "MaxPool2d": lambda **given: bt.MaxPool2d(**{"kernel_size": 3, **given}),
    "AvgPool2d": lambda **given: bt.AvgPool2d(**{"kernel_size": 3, **given}),
    "BatchNorm2d": bt.BatchNorm2d,
    "Dropout": bt.Dropout,
    "LocalResponseNorm": bt.LocalResponseNorm,
}
DECLARED = [(name, argument) for name in LAYERS for argument in getattr(bt, name).arguments]
NEVER = ["0.5", "same", b"3", math.nan, math.inf, -math.inf, 10**40, 10**5000, [], (1,), (1, 2, 3), {}, object(), 1j]


def test_every_layer_declares_its_arguments():
    """A layer's arguments are those that its class declares kinds for; its name is text."""
    for name in bt.__all__:
        layer = getattr(bt, name)
        if inspect.isclass(layer) and issubclass(layer, bt.Layer) and not inspect.isabstract(layer):
            own = {field.name for field in fields(layer)} - {"name", "layers", "branches", "merge"}
            assert set(layer.arguments) == own, name


@pytest.mark.parametrize(("name", "argument"), DECLARED, ids=[f"{n}.{a}" for n, a in DECLARED])
def test_values_that_make_no_sense_are_refused_when_a_layer_is_made(name, argument):
    make, kind = LAYERS[name], getattr(bt, name).arguments[argument]
    wrong = list(NEVER)
    inner = kind.kind if isinstance(kind, Maybe) else kind
    if not isinstance(kind, Maybe):
        wrong.append(None)
    if isinstance(inner, (Whole, Pair)):
        wrong += [inner.least - 1, LARGEST_SIZE + 1, True, np.bool_(True), 2.0, np.float32(2), np.int64(-1)]
    if isinstance(inner, Pair):
        wrong += [(inner.least - 1, 1), (1, True), (1, 2.0), ("1", 1), (1, LARGEST_SIZE + 1)]
    if isinstance(inner, Number):
        wrong += [True, np.bool_(False), np.float32("nan"), 1e39, inner.least - 1 if inner.least == 0 else 1e300]
    if isinstance(inner, Switch):
        wrong += [0, 1, np.int64(1), "True"]
    for value in wrong:
        with pytest.raises(bt.ConfigError, match=rf"^{name}: expected {argument} as "):
            make(**{argument: value})


def test_numbers_of_numpy_are_taken_and_become_pythons():
    layer = bt.Conv2d(
        np.int64(4), [np.int32(3), np.uint8(1)], stride=np.int16(2), padding=(np.int64(1), 0), bias=np.bool_(False)
    )
    assert layer == bt.Conv2d(4, (3, 1), stride=2, padding=(1, 0), bias=False)
    norm = bt.BatchNorm2d(eps=np.float32(0.5), momentum=np.float64(0.25))
    values = (layer.out_channels, layer.kernel_size[0], layer.bias, norm.eps, norm.momentum)
    assert [type(value) for value in values] == [int, int, bool, float, float]
    plain = [bt.Sequential(x, bt.Flatten(), bt.Linear(n)) for x, n in ((layer, np.int64(3)), (replace(layer), 3))]
    assert len({forward_graph(network, (2, 3, 8, 8)).fingerprint() for network in plain}) == 1
    assert bt.SGD(np.float32(0.5), momentum=np.float64(0.5), nesterov=np.bool_(True)) == bt.SGD(
        0.5, momentum=0.5, nesterov=True
    )
    assert bt.Constant(np.float32(2)) == bt.Constant(2.0)


def test_a_number_stays_as_it_is_written():
    """The fingerprints of old checkpoints and plans tell 0 from 0.0."""
    assert [type(bt.Dropout(p).p) for p in (0, 0.0)] == [int, float]
    assert type(bt.SGD(1).learning_rate) is int


@pytest.mark.parametrize(
    "made", [bt.Conv2d(3, 1, stride=2, name="a"), bt.SGD(0.1, momentum=0.5), bt.Sequential(bt.ReLU())]
)
def test_what_is_made_of_arguments_can_be_copied(made):
    assert copy.deepcopy(made) == copy.copy(made) == pickle.loads(pickle.dumps(made)) == made
    if type(made) is not bt.Sequential:
        assert is_dataclass(made) and replace(made) == made


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: bt.Conv2d(3, 1, padding="same"), "padding=kernel_size // 2"),
        (lambda: bt.BatchNorm2d(momentum=None), "cumulative average"),
        (lambda: bt.Conv2d(3, 1, name=3), "name as a text, got 3"),
        (lambda: bt.Sequential(name=None), "name as a text, got None"),
        (lambda: bt.Conv2d(3, 1, initializer=bt.He), r"Call the class: He\(\)"),
        (lambda: bt.Linear(3, initializer="he"), r"an object such as He\(\)"),
        (lambda: bt.Sequential([bt.ReLU()]), r"Sequential\(\*layers\)"),
        (lambda: bt.Residual(bt.ReLU), "Residual.body"),
        (lambda: bt.Residual(bt.ReLU(), "identity"), "Residual.shortcut"),
        (lambda: bt.Normal(0.0, -1.0), "std as a number that is finite and at least 0"),
        (lambda: bt.Constant("1"), "value as a number"),
        (lambda: bt.He(None), "fan"),
        (lambda: bt.SGD(math.nan), "learning_rate"),
        (lambda: bt.SGD(1e39), "learning_rate"),
        (lambda: bt.SGD(True), "learning_rate"),
        (lambda: bt.SGD(0.1, nesterov=1, momentum=0.5), "nesterov as True or False"),
        (lambda: bt.models.resnet18(True), "classes as a whole number.*no weights to load"),
        (lambda: bt.models.vgg11("10"), "classes as a whole number"),
        (lambda: bt.models.vgg11(batch_norm=1), "batch_norm as True or False"),
        (lambda: bt.models.alexnet(10**30), "classes as a whole number from 1 to"),
        (lambda: bt.models.small_resnet(blocks=2.0), "blocks=2.0"),
        (lambda: bt.models.small_resnet(widths=(8, "16")), "widths as a whole number"),
        (lambda: bt.models.resnet18(residual_scale=math.nan), "residual_scale as a number"),
        (lambda: bt.models.resnet((1, 1, 10**9, 1)), "up to 65536"),
        (lambda: bt.models.resnet(3), "four positive whole numbers"),
        (lambda: bt.models.build_model("resnet:1,1,9999999999999999999999,1"), "four positive whole numbers"),
    ],
)
def test_other_arguments_that_make_no_sense(make, part):
    with pytest.raises(bt.BathyalError, match=part):
        make()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (bt.Linear(LARGEST_SIZE), (1, 2**13)),
        (bt.Conv2d(2**20, 2**10), (1, 3, 2**10, 2**10)),
        (bt.Conv2d(1, 1, padding=LARGEST_SIZE), (1, 1, 1, 1)),
    ],
)
def test_tensors_that_no_machine_holds_are_refused(layer, shape):
    with pytest.raises(bt.ShapeError, match="a tensor of at most"):
        forward_graph(bt.Sequential(layer, bt.ReLU()), shape)


@pytest.mark.parametrize("device", ["reference", "onednn"])
def test_dropout_of_everything_is_zero_and_so_is_its_gradient(device):
    network = bt.Sequential(bt.Linear(6), bt.Dropout(1), bt.Linear(3))
    images, labels = np.full((4, 5), 2.0, np.float32), np.zeros(4, np.int64)
    images[0] = 0.0
    with bt.Trainer(network, (4, 5), device=device, memory="1 MiB", costs="analytic") as trainer:
        before = {name: trainer.state.read(name).copy() for name in ("0.weight", "2.weight")}
        assert trainer.train_step(images, labels).loss == pytest.approx(math.log(3))
        for name, values in before.items():
            np.testing.assert_array_equal(trainer.state.read(name), values)
