"""What a program adds from outside the package, with the mistakes that people make: each is named where it is made."""

from dataclasses import dataclass

import numpy as np
import pytest

import bathyal as bt
from bathyal.memory.arguments import Number
from tests.support.onednn_library import onednn_backend

IMAGES = np.ones((2, 3, 4, 4), np.float32)


def train(*layers, **choices):
    network = bt.Sequential(bt.Conv2d(4, 3), *layers, bt.Flatten(), bt.Linear(3))
    choices = {"device": "reference", "costs": "analytic", "memory": "1 MiB", **choices}
    with bt.Trainer(network, IMAGES.shape, **choices) as trainer:
        return trainer.train_step(IMAGES, np.zeros(2, int))


class Applied(bt.Layer):
    """Applies a kind of operation, or forgets to return what it made."""

    def __init__(self, kind, returns=True):
        self.kind, self.returns = kind, returns

    def build(self, builder, x):
        made = builder.apply(self.kind, (x,))
        return made if self.returns else None


def copy(x, y):
    np.copyto(y, x)


@pytest.fixture
def onednn():
    """oneDNN, or a skipped test."""
    onednn_backend()


@pytest.fixture
def register():
    """`register_operation`, undone at the end."""
    names = []

    def add(kind, *args, **kernels):
        bt.register_operation(kind, *args, **kernels)
        names.append(kind.name)
        return kind

    yield add
    for name in names:
        bt.unregister_operation(name)


def test_a_missing_gradient_rule_is_named_with_its_own_layer(register):
    kind = register(bt.OpKind("own_copy", bt.layers.same_as_first), copy)
    with pytest.raises(bt.GraphError, match=r"^1 \(own_copy\): expected a kind with a gradient rule"):
        train(Applied(kind))


def test_a_layer_that_returns_nothing(register):
    kind = register(bt.OpKind("own_copy", bt.layers.same_as_first), copy)
    with pytest.raises(bt.GraphError, match=r"^1: expected a tensor from the `build` of Applied, got None"):
        train(Applied(kind, returns=False))


@pytest.mark.parametrize("made", [None, (), (1, 2)])
def test_a_gradient_rule_that_returns_another_number_of_gradients(register, made):
    kind = register(bt.OpKind("own_copy", bt.layers.same_as_first, lambda builder, op, gradients: made), copy)
    with pytest.raises(bt.GraphError, match=r"^1 \(own_copy\): expected 1 gradients"):
        train(Applied(kind))


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (lambda builder, op, gradients: (op.outputs[0],), r"1\.own_copy"),
        (lambda builder, op, gradients: (99999,), "99999"),
        (lambda builder, op, gradients: (-1,), "-1"),
        (
            lambda builder, op, gradients: (builder.emit("own_copy_backward", gradients, (0,), {})[0],),
            r"\(2, 3, 4, 4\)",
        ),
    ],
    ids=["a forward tensor", "beyond the last", "before the first", "another shape"],
)
def test_a_gradient_that_is_none_of_this_input(register, rule, found):
    kind = register(bt.OpKind("own_copy", bt.layers.same_as_first, rule), copy)
    register(bt.OpKind("own_copy_backward"), copy)
    with pytest.raises(
        bt.GraphError, match=rf"^1 \(own_copy\): expected a gradient of shape \(2, 4, 2, 2\).*got.*{found}"
    ):
        train(Applied(kind))


class Scaled(bt.Layer):
    """Applies a kind of operation to its input and a parameter."""

    def __init__(self, kind):
        self.kind = kind

    def build(self, builder, x):
        return builder.apply(self.kind, (x, builder.parameter("scale", (1,), bt.Constant(1.0))))


def test_a_parameter_without_a_gradient(register):
    def half(builder, op, gradients):
        return (*builder.emit("own_scale_backward", gradients, op.inputs[:1], op.attrs), None)

    kind = register(bt.OpKind("own_scale", bt.layers.same_as_first, half), lambda x, scale, y: copy(x, y))
    register(bt.OpKind("own_scale_backward"), copy)
    with pytest.raises(bt.GraphError, match=r"^1 \(own_scale\): expected a gradient of 1\.scale, got None"):
        train(Scaled(kind))
    without = register(bt.OpKind("own_plain_scale", bt.layers.same_as_first), lambda x, scale, y: copy(x, y))
    with pytest.raises(bt.GraphError, match=r"^1 \(own_plain_scale\): expected a kind with a gradient rule"):
        train(bt.Residual(Scaled(without)))


def test_a_parameter_that_only_a_dead_end_reads(register):
    class DeadEnd(bt.Layer):
        def build(self, builder, x):
            builder.apply(kind, (x, builder.parameter("scale", (1,), bt.Constant(1.0))))
            return x

    kind = register(bt.OpKind("own_scale", bt.layers.same_as_first), lambda x, scale, y: copy(x, y))
    with pytest.raises(bt.GraphError, match=r"^1\.scale: expected gradients by all that read it"):
        train(DeadEnd())


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        (lambda inputs, attrs: inputs[0], "a tuple of TensorSpec"),
        (lambda inputs, attrs: None, "a tuple of TensorSpec"),
        (lambda inputs, attrs: (), "a tuple of TensorSpec"),
        (lambda inputs, attrs: (bt.TensorSpec((2, 0), "float32"),), "at least 1"),
        (lambda inputs, attrs: (bt.TensorSpec((2, -1), "float32"),), "at least 1"),
        (lambda inputs, attrs: (bt.TensorSpec((2, 1.5), "float32"),), "at least 1"),
        (lambda inputs, attrs: (bt.TensorSpec((2, 4), "banana"),), "a type of numbers by numpy's name"),
    ],
)
def test_shapes_that_are_none(register, shapes, found):
    kind = register(bt.OpKind("own_copy", shapes), copy)
    with pytest.raises(bt.GraphError, match=rf"^1 \(own_copy\): .*{found}"):
        train(Applied(kind))


def test_attributes_that_are_no_plain_values(register):
    class Given(bt.Layer):
        def build(self, builder, x):
            return builder.apply(kind, (x,), {"w": np.ones(2)})

    kind = register(bt.OpKind("own_copy", bt.layers.same_as_first), copy)
    with pytest.raises(bt.GraphError, match=r"^1 \(own_copy\): .*names with numbers.*'w': a ndarray"):
        train(Given())


def test_numbers_of_numpy_and_lists_are_plain_values(register):
    class Given(bt.Layer):
        def build(self, builder, x):
            return builder.apply(kind, (x,), {"a": np.float32(0.5), "b": [np.int64(1), 2]})

    def shapes(inputs, attrs):
        assert attrs == {"a": 0.5, "b": (1, 2)}
        return (bt.TensorSpec(np.array(inputs[0].shape).tolist(), np.float32),)

    def gradient(builder, op, gradients):
        return builder.emit("own_copy_backward", gradients, op.inputs, {})

    kind = register(bt.OpKind("own_copy", shapes, gradient), lambda x, y, a, b: copy(x, y))
    register(bt.OpKind("own_copy_backward"), copy)
    assert np.isfinite(train(Given()).loss)


def test_a_second_output_that_is_trained(register):
    class Second(bt.Layer):
        def build(self, builder, x):
            return builder.apply(kind, (x,)) + 1

    def gradient(builder, op, gradients):
        return builder.emit("own_twice_backward", gradients, op.inputs, {})

    kind = register(
        bt.OpKind("own_twice", lambda inputs, attrs: (inputs[0], inputs[0]), gradient),
        lambda x, y, z: (copy(x, y), copy(x, z))[0],
    )
    register(bt.OpKind("own_twice_backward"), copy)
    with pytest.raises(bt.GraphError, match=r"^1 \(own_twice\): .* its first output alone"):
        train(Second())


def test_a_loss_without_a_gradient():
    class Forgetful(bt.CrossEntropy):
        def gradient(self, builder, op, scalars):
            super().gradient(builder, op, scalars)

    with pytest.raises(bt.GraphError, match=r"expected a gradient of shape .*got None"):
        train(loss=Forgetful())


def test_a_kernel_that_returns_what_it_should_write(register):
    def gradient(builder, op, gradients):
        return builder.emit("own_copy_backward", gradients, op.inputs, op.attrs)

    kind = register(bt.OpKind("own_copy", bt.layers.same_as_first, gradient), lambda x, y: np.multiply(x, 1, out=y))
    register(bt.OpKind("own_copy_backward"), lambda dy, dx: dy * 1)
    with pytest.raises(bt.DeviceError, match=r"a function that writes its outputs, got one that returned a ndarray"):
        train(Applied(kind))


class Halving(bt.SGD):
    """An optimizer that divides by a step scalar, which is 0 in no step."""

    kind = "own_halving"
    attrs = {}  # noqa: RUF012
    slots = {}  # noqa: RUF012

    def step_scalars(self, step, learning_rate):
        return {"divisor": 2.0}


def test_kernels_are_timed_with_the_step_scalars_of_the_first_step(register, tmp_path):
    seen = []

    def run(weight, gradient, scalars):
        seen.append(scalars.tolist())
        np.multiply(gradient, 1 / float(scalars[2]), out=gradient)

    register(bt.OpKind("own_halving", flat=True), run)
    train(optimizer=Halving(0.25), costs="measured", cache=tmp_path)
    assert len(seen) > 8 and all(values == [0.25, 1.0, 2.0] for values in seen)


def test_a_kernel_that_fails_while_it_is_timed_is_named(register, tmp_path):
    def run(weight, gradient, scalars):
        raise ZeroDivisionError("float division by zero")

    register(bt.OpKind("own_halving", flat=True), run)
    with pytest.raises(bt.DeviceError, match=r"\(own_halving\), kernel .*ZeroDivisionError: float division by zero"):
        train(optimizer=Halving(0.25), costs="measured", cache=tmp_path)


def test_strategies_and_backends_that_are_none():
    with pytest.raises(bt.ConfigError, match="a StrategyKind"):
        bt.register_strategy("mine")
    with pytest.raises(bt.ConfigError, match="a function from BackendOptions"):
        bt.register_backend("mine", 3)
    bt.register_strategy(bt.StrategyKind("own-none", lambda placer, name: None))
    bt.register_backend("own-none", lambda options: None)
    try:
        with pytest.raises(bt.ConfigError, match=r"'own-none': expected a Strategy from its `make`, got None"):
            train(strategy="own-none")
        with pytest.raises(bt.ConfigError, match=r"'own-none'.* got NoneType without name, machine, computes"):
            train(device="own-none")
    finally:
        bt.unregister_strategy("own-none")
        bt.unregister_backend("own-none")


def test_an_addition_that_is_there_already_is_taken_back_by_a_call_that_exists(register):
    register(bt.OpKind("own_copy", bt.layers.same_as_first), copy)
    with pytest.raises(bt.ConfigError, match=r"bt\.unregister_operation\('own_copy'\)"):
        bt.register_operation(bt.OpKind("own_copy", bt.layers.same_as_first, flat=True), copy)


@pytest.mark.parametrize(("wrong", "right"), [("memroy", "memory"), ("kernals", "kernels"), ("optimiser", "optimizer")])
def test_an_argument_that_there_is_not(wrong, right):
    with pytest.raises(TypeError, match=rf"Trainer .*'{wrong}'. Did you mean '{right}'"):
        train(**{wrong: "1 MiB"})
    with pytest.raises(TypeError, match=r"Trainer .*'batch_size'"):
        train(batch_size=3)


def cosine(x, y):
    np.cos(x, out=y)


def cumulate(x, y):
    np.copyto(y, x)
    y.reshape(-1)[1:] += x.reshape(-1)[:-1]


def reshape(x, y):
    np.copyto(y.reshape(2, 4, 2, 2), x.reshape(2, 4, 2, 2))


@pytest.mark.parametrize(
    ("run", "found"),
    [(cosine, "makes zeros of zeros"), (cumulate, "element by element"), (reshape, "takes its operands as vectors")],
)
def test_kinds_that_are_not_flat_are_found_out(register, onednn, run, found):
    def gradient(builder, op, gradients):
        return builder.emit("own_copy_backward", gradients, op.inputs, {})

    kind = register(bt.OpKind("own_flat", bt.layers.same_as_first, gradient, flat=True), run)
    register(bt.OpKind("own_copy_backward", flat=True), copy)
    with pytest.raises(bt.ConfigError, match=rf"^1 \(own_flat\): .*{found}.*flat=True"):
        train(Applied(kind), device="onednn")


def test_an_update_that_is_not_flat_is_found_out(register, onednn):
    def run(weight, gradient, scalars):
        np.subtract(weight, 1e-3, out=weight)  # weight decay that forgets where the weight is 0

    register(bt.OpKind("own_halving", flat=True), run)
    with pytest.raises(bt.ConfigError, match=r"\(own_halving\): .*makes zeros of zeros"):
        train(optimizer=Halving(0.25), device="onednn")


def test_a_slot_that_is_called_as_the_gradient_is(register):
    class Remembering(Halving):
        slots = {"gradient": 0.0}  # noqa: RUF012

    register(bt.OpKind("own_halving", flat=True), lambda weight, gradient, slot, scalars: None)
    with pytest.raises(bt.ConfigError, match=r"Remembering\.slots: .*previous_gradient"):
        train(optimizer=Remembering(0.1))


def test_a_layer_that_applies_a_kind_twice_is_told_of_scopes(register):
    class Twice(bt.Layer):
        def build(self, builder, x):
            return builder.apply(kind, (builder.apply(kind, (x,)),))

    kind = register(bt.OpKind("own_copy", bt.layers.same_as_first), copy)
    with pytest.raises(bt.GraphError, match=r"builder\.scope"):
        train(Twice())


class Pairs:
    """A loss whose targets are of pairs of samples, so that a short batch has another shape of targets."""

    kind = "own_pairs"
    attrs = {}  # noqa: RUF012
    metrics = ()

    def target(self, output):
        return bt.Target((output.shape[0],) * 2, np.float32)

    def gradient(self, builder, op, scalars):
        return builder.emit("own_pairs_backward", (op.inputs[0], scalars), op.inputs[:1], {})[0]


def test_a_short_batch_has_the_targets_of_its_own_size(register):
    shapes = lambda inputs, attrs: (bt.TensorSpec((1,), inputs[0].dtype),)  # noqa: E731
    register(bt.OpKind("own_pairs", shapes), lambda output, target, loss: np.mean(target, out=loss[0:1].reshape(())))
    register(bt.OpKind("own_pairs_backward"), lambda output, scalars, gradient: copy(output, gradient))
    network = bt.Sequential(bt.Flatten(), bt.Linear(3))
    images = np.ones((4, 2, 3, 3), np.float32)
    with bt.Trainer(
        network, images.shape, loss=Pairs(), device="reference", costs="analytic", memory="1 MiB"
    ) as trainer:
        assert trainer.train_step(images, np.ones((4, 4))).loss == 1
        for wrong in ((3, 4), (3,), (4, 3)):
            with pytest.raises(bt.DataError, match=r"expected shape \(3, 3\)"):
                trainer.train_step(images[:3], np.ones(wrong))
        assert trainer.train_step(images[:3], np.full((3, 3), 2)).loss == 2


@pytest.mark.parametrize(
    "given",
    [((4,), "banana"), ((0,), "float32"), ((4, 1.5), "float32"), (4, "float32"), ((4,), "int64", "3"), ((4,), "U4")],
)
def test_targets_that_are_none(given):
    with pytest.raises(bt.ConfigError, match=r"^Target: "):
        bt.Target(*given)


def test_targets_by_other_names():
    assert bt.Target([np.int64(4), 2], "f4") == bt.Target((4, 2), "float32") == bt.Target((4, 2), np.float32)
    with pytest.raises(bt.ConfigError, match=r"one class a sample"):
        bt.Target((4, 8, 8), "int64", 3)


@pytest.mark.parametrize(
    ("shape", "initializer", "error", "found"),
    [
        ((0,), bt.Constant(1.0), bt.GraphError, "at least 1"),
        ((1.5,), bt.Constant(1.0), bt.GraphError, "at least 1"),
        ((2**34,), bt.Constant(1.0), bt.ShapeError, "a tensor of at most"),
        ((1,), bt.Constant, bt.ConfigError, r"Call the class: Constant\(\)"),
        ((1,), "ones", bt.ConfigError, "an object such as He"),
    ],
)
def test_parameters_that_are_none(shape, initializer, error, found):
    class Own(bt.Layer):
        def build(self, builder, x):
            builder.parameter("scale", shape, initializer)
            return x

    with pytest.raises(error, match=rf"^1\.scale: .*{found}"):
        train(Own())


def test_a_layer_of_a_program_declares_its_arguments_as_those_of_the_package_do():
    @dataclass(frozen=True)
    class Own(bt.Layer):
        arguments = {"slope": Number(0, 1)}  # noqa: RUF012
        slope: float = 0.5

        def build(self, builder, x):
            return x

    assert type(Own(np.float32(0.25)).slope) is float
    with pytest.raises(bt.ConfigError, match=r"^Own 'mine': expected slope as a number from 0 to 1, got 2"):
        Own(2, name="mine")
