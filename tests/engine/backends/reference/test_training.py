"""Loss, updates and whole training steps of the numpy backend against PyTorch."""

import numpy as np
import pytest

from bathyal.layers import (
    SGD,
    Add,
    BatchNorm2d,
    Branches,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    Identity,
    Linear,
    ReLU,
    Residual,
    Role,
    Sequential,
    forward_graph,
    training_graph,
)
from bathyal.layers.graph import TensorSpec


def loss_of(harness, logits, labels):
    loss, correct = harness.compute("softmax_cross_entropy", [logits, labels])
    return float(loss[0]), tuple(correct)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (7, 10), (1200, 4), (600, 100), (3, 50000)])
def test_loss_counts_and_gradient_are_pytorchs(harness, torch, close, shape, dtype):
    rng = np.random.default_rng(0)
    logits = (4 * rng.standard_normal(shape)).astype(dtype)
    labels = rng.integers(0, shape[1], shape[0])
    leaf = torch.tensor(logits.astype("float64"), requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(leaf, torch.tensor(labels))
    theirs.backward()
    loss, correct = harness.compute("softmax_cross_entropy", [logits, labels])
    close(loss, np.array([theirs.item()]))
    ranks = (logits > logits[np.arange(shape[0]), labels][:, None]).sum(1)
    assert tuple(correct) == ((ranks < 1).sum(), (ranks < 5).sum())
    spec = [TensorSpec(shape, dtype)]
    scalars = np.array([0.1, 128.0])
    (gradient,) = harness.compute("softmax_cross_entropy_backward", [logits, labels, scalars], {}, spec)
    close(gradient, 128 * leaf.grad.numpy())


def test_counts_of_equal_logits_and_of_nans(harness):
    nan = np.nan
    labels = np.array([2, 0, 1])
    equal = np.zeros((3, 6))
    assert loss_of(harness, equal, labels)[1] == (3, 3)
    logits = np.array([[0, 0, 9, nan, 0, 0, 0], [nan, 0, 0, 0, 0, 0, 0], [nan, 5, nan, nan, nan, nan, 0]])
    # One NaN ranks before the first label; six other classes do before a label that is NaN; five before the third.
    assert loss_of(harness, logits, labels)[1] == (0, 1)
    assert loss_of(harness, np.full((3, 3), nan), labels)[1] == (0, 3)
    assert np.isnan(loss_of(harness, logits, labels)[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_logits_do_not_overflow(harness, dtype):
    logits = np.array([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]], dtype)
    loss, _ = loss_of(harness, logits, np.array([0, 1]))
    assert loss == pytest.approx(np.log(3) / 2, rel=1e-6)


def test_gradient_of_the_loss_is_a_finite_difference(harness, slope):
    rng = np.random.default_rng(1)
    logits, labels = rng.standard_normal((5, 7)), rng.integers(0, 7, 5)
    (gradient,) = harness.compute(
        "softmax_cross_entropy_backward", [logits, labels, np.array([0.0, 1.0])], {}, [TensorSpec((5, 7), "float64")]
    )
    slope(lambda a: harness.compute("softmax_cross_entropy", [a, labels])[0], (logits,), (gradient,))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(),
        SGD(weight_decay=0.01),
        SGD(momentum=0.9),
        SGD(momentum=0.9, weight_decay=0.02),
        SGD(momentum=0.8, weight_decay=0.02, nesterov=True),
        SGD(momentum=0.8, nesterov=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(3,), (250, 301)])
def test_updates_are_pytorchs(harness, torch, close, optimizer, shape, dtype):
    rng = np.random.default_rng(2)
    weight = rng.standard_normal(shape).astype(dtype)
    velocity = [np.zeros(shape, dtype)] if optimizer.momentum else []
    leaf = torch.tensor(weight.astype("float64"), requires_grad=True)
    theirs = torch.optim.SGD(
        [leaf], 1.0, optimizer.momentum, weight_decay=optimizer.weight_decay, nesterov=optimizer.nesterov
    )
    for rate in (0.1, 0.05, 0.0, 0.2):
        gradient = rng.standard_normal(shape).astype(dtype)
        inputs = [weight, gradient, *velocity, np.array([rate, 1.0])]
        graph, op = harness.operation(
            "sgd_update", inputs, optimizer.attrs, [], updates=[0, *range(2, len(inputs) - 1)]
        )
        left = harness.run(graph, op, inputs).inputs
        weight, velocity = left[0], left[2:-1]
        leaf.grad = torch.tensor(gradient.astype("float64"))
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
        close(weight, leaf.detach().numpy())
        if velocity:
            close(velocity[0], theirs.state[leaf]["momentum_buffer"].numpy())


def network():
    def block(channels, stride):
        body = Sequential(
            Conv2d(channels, 3, stride=stride, padding=1, bias=False),
            BatchNorm2d(),
            ReLU(),
            Conv2d(channels, 3, padding=1, bias=False),
            BatchNorm2d(),
        )
        shortcut = Sequential(Conv2d(channels, 1, stride=stride, bias=False), BatchNorm2d()) if stride > 1 else None
        return Residual(body, shortcut, ReLU())

    return Sequential(
        Conv2d(8, 3, padding=1, bias=False),
        BatchNorm2d(),
        ReLU(),
        block(8, 1),
        block(16, 2),
        Branches(Conv2d(16, 1), Identity(), merge=Add()),
        GlobalAvgPool2d(),
        Flatten(),
        Linear(10),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_training_steps_are_pytorchs(harness, torch_network, initial_values, close, dtype):
    forward = forward_graph(network(), (6, 3, 9, 9), dtype)
    optimizer = SGD(0.1, momentum=0.9, weight_decay=1e-3)
    graph = training_graph(forward, optimizer)
    values = initial_values(forward)
    oracle = torch_network(forward, values)
    state = {t.name: values.get(t.name, np.zeros(t.shape, t.dtype)) for t in graph.tensors}
    rng = np.random.default_rng(3)
    for _ in range(3):
        images, labels = rng.standard_normal((6, 3, 9, 9)).astype(dtype), rng.integers(0, 10, 6)
        state.update(images=images, labels=labels, scalars=np.array([0.1, 1.0]), random_key=np.array([0, 0]))
        for op in graph.ops:
            result = harness.run(graph, op, [state[graph.tensors[t].name] for t in op.inputs])
            for tensor, made in zip((*op.inputs, *op.outputs), (*result.inputs, *result.outputs), strict=True):
                state[graph.tensors[tensor].name] = made
        loss = oracle.loss(images, labels)
        tolerance = {"float32": 1e-3, "float64": 1e-10}[dtype]
        assert float(state["loss"][0]) == pytest.approx(loss, rel=tolerance)
        oracle.sgd_step(0.1, 0.9, 1e-3)
        for name, value in oracle.values.items():
            close(state[name], value, tolerance)
        for name, value in oracle.momenta.items():
            close(state[f"{name}.momentum"], value, tolerance * 10)
    assert len(graph.with_role(Role.OPTIMIZER)) == len(graph.with_role(Role.PARAMETER))
