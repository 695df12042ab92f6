"""The oracle itself: against PyTorch's own modules, which share none of its interpretation of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bathyal.layers import (
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
    Sequential,
    Sigmoid,
    Tanh,
    forward_graph,
)

torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
nn = torch.nn

NETWORK = Sequential(
    Conv2d(6, 3, stride=2, padding=1, groups=3),
    BatchNorm2d(eps=1e-3, momentum=0.2),
    ReLU(),
    MaxPool2d(3, 2, 1),
    Flatten(),
    Linear(5),
)
SHAPE = (4, 3, 12, 12)


def same_in_torch() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3),
        nn.BatchNorm2d(6, eps=1e-3, momentum=0.2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Flatten(),
        nn.Linear(54, 5),
    )


def batch(shape: tuple[int, ...], dtype: str, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape).astype(dtype), rng.integers(0, 5, shape[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2},
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2, "nesterov": True},
    ],
)
def test_three_steps_equal_those_of_torch_modules(
    torch_network: Any, initial_values: Any, dtype: str, options: Any
) -> None:
    graph = forward_graph(NETWORK, SHAPE, dtype)
    values = initial_values(graph, seed=3)
    net = torch_network(graph, values)
    module = same_in_torch().to(getattr(torch, dtype))
    module.load_state_dict({n: torch.tensor(v) for n, v in values.items()}, strict=False)
    optimizer = torch.optim.SGD(module.parameters(), **options)
    for step in range(3):
        images, labels = batch(SHAPE, dtype, step)
        loss = nn.functional.cross_entropy(module(torch.tensor(images)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        assert net.loss(images, labels) == loss.item()
        for name, parameter in module.named_parameters():
            np.testing.assert_array_equal(net.gradients[name], parameter.grad.numpy())
        optimizer.step()
        net.sgd_step(**options)
    state = {n: t.numpy() for n, t in module.state_dict().items() if "num_batches" not in n}
    assert state.keys() == net.values.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(net.values[name], value)
    assert set(net.momenta) == (set(net.gradients) if options.get("momentum") else set())
    assert not np.array_equal(net.values["1.running_var"], values["1.running_var"])


def test_evaluation_takes_the_running_statistics_and_leaves_them(torch_network: Any, initial_values: Any) -> None:
    graph = forward_graph(NETWORK, SHAPE, "float64")
    values = initial_values(graph)
    values["1.running_mean"] = np.linspace(-1, 1, 6)
    values["1.running_var"] = np.linspace(0.5, 2, 6)
    net = torch_network(graph, values, training=False)
    module = same_in_torch().double().eval()
    module.load_state_dict({n: torch.tensor(v) for n, v in values.items()}, strict=False)
    images, _ = batch(SHAPE, "float64")
    np.testing.assert_array_equal(net.forward(images).detach().numpy(), module(torch.tensor(images)).detach().numpy())
    np.testing.assert_array_equal(net.values["1.running_mean"], values["1.running_mean"])


def test_all_other_kinds_equal_torch_modules(torch_network: Any, initial_values: Any) -> None:
    network = Sequential(
        Branches(Tanh(), Sigmoid(), Identity(), merge=Add()),
        LocalResponseNorm(3, 0.2, 0.6, 1.5),
        Branches(AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), MaxPool2d(3, 2, 1, ceil_mode=True)),
        Branches(ReLU(), Identity(), merge=Concat()),
        GlobalAvgPool2d(),
        Flatten(),
        Linear(5, bias=False),
    )
    graph = forward_graph(network, (2, 4, 6, 7), "float64")
    values = initial_values(graph)
    images, _ = batch((2, 4, 6, 7), "float64")
    x = torch.tensor(images)
    x = torch.tanh(x) + torch.sigmoid(x) + x
    x = nn.LocalResponseNorm(3, 0.2, 0.6, 1.5)(x)
    pools = (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), nn.MaxPool2d(3, 2, 1, ceil_mode=True))
    x = torch.cat([pool(x) for pool in pools], 1)
    x = torch.cat([torch.relu(x), x], 1)
    expected = nn.AdaptiveAvgPool2d(1)(x).flatten(1) @ torch.tensor(values["6.weight"]).T
    found = torch_network(graph, values).forward(images)
    np.testing.assert_allclose(found.detach().numpy(), expected.numpy(), rtol=1e-13, atol=1e-14)


def test_dropout_follows_the_given_mask(torch_network: Any, initial_values: Any) -> None:
    graph = forward_graph(Sequential(Flatten(), Dropout(0.75, name="drop"), Linear(5)), (2, 1, 2, 3), "float64")
    values = initial_values(graph)
    images, labels = batch((2, 1, 2, 3), "float64")
    kept = np.arange(12).reshape(2, 6) % 3 == 0
    net = torch_network(graph, values, masks={"drop": kept})
    expected = (images.reshape(2, 6) * kept * 4) @ values["2.weight"].T + values["2.bias"]
    np.testing.assert_allclose(net.forward(images).detach().numpy(), expected, rtol=1e-13)
    net.loss(images, labels)
    assert (net.gradients["2.weight"][:, ~kept.any(0)] == 0).all()
    with pytest.raises(AssertionError, match="drop: give the mask"):
        torch_network(graph, values).forward(images)
    plain = torch_network(graph, values, training=False).forward(images).detach().numpy()
    np.testing.assert_allclose(plain, images.reshape(2, 6) @ values["2.weight"].T + values["2.bias"], rtol=1e-13)
