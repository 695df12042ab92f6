"""Pre-activation residual networks: sizes of the paper, and the same architecture written in PyTorch's own modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bathyal.layers import Role, forward_graph
from bathyal.memory.errors import ConfigError
from bathyal.models import MODELS, build_model, preact_resnet
from bathyal.models.resnet import depth

PARAMETERS = {
    "preact_resnet18": 11_687_720,
    "preact_resnet50": 25_549_352,
    "preact_resnet101": 44_541_480,
    "preact_resnet152": 60_185_128,
    "preact_resnet200": 64_666_152,
    "preact_resnet164": 1_703_258,
    "preact_resnet1001": 10_327_706,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    """64.7 million for 200 layers of 224² images, 1.7 and 10.3 million for 164 and 1001 layers of 32² images."""
    side = MODELS[name].image_side
    assert forward_graph(build_model(name), (1, 3, side, side)).parameters == PARAMETERS[name]


def test_depths_are_those_of_the_names() -> None:
    assert depth((3, 24, 36, 3)) == 200
    assert depth((18, 18, 18)) == 164
    assert depth((111, 111, 111)) == 1001


def test_nothing_comes_after_a_sum_but_the_next_unit() -> None:
    graph = forward_graph(build_model("preact_resnet50"), (1, 3, 64, 64))
    readers = graph.readers()
    sums = [op for op in graph.ops if op.kind == "add"]
    assert len(sums) == 16
    for op in sums:
        assert graph.ops[readers[op.outputs[0]][0]].kind == "batch_norm"


def in_pytorch(stages: Sequence[int], widths: Sequence[int], block: str, classes: int, small: bool) -> Any:
    """The paper's network in modules with the names of our layers."""
    import torch
    from torch import nn
    from torch.nn.functional import max_pool2d, relu

    class Unit(nn.Module):
        def __init__(self, channels: int, width: int, stride: int, activated: bool) -> None:
            super().__init__()
            wide = 4 * width if block == "bottleneck" else width
            sizes = [(1, 1), (3, stride), (1, 1)] if block == "bottleneck" else [(3, stride), (3, 1)]
            ends = [width] * (len(sizes) - 1) + [wide]
            self.count, self.activated = len(sizes), activated
            before = channels
            for i, ((kernel, step), after) in enumerate(zip(sizes, ends, strict=True), 1):
                if i > 1 or not activated:
                    self.add_module(f"bn{i}", nn.BatchNorm2d(before))
                self.add_module(f"conv{i}", nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
                before = after
            if stride != 1 or channels != wide:
                self.downsample = nn.Conv2d(channels, wide, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            a = x if self.activated else relu(self.bn1(x))
            y = self.conv1(a)
            for i in range(2, self.count + 1):
                y = getattr(self, f"conv{i}")(relu(getattr(self, f"bn{i}")(y)))
            return y + (self.downsample(a) if hasattr(self, "downsample") else x)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            channels = widths[0]
            self.conv1 = nn.Conv2d(3, channels, *((3, 1, 1) if small else (7, 2, 3)), bias=False)
            if not small:
                self.bn1 = nn.BatchNorm2d(channels)
            for number, (count, width) in enumerate(zip(stages, widths, strict=True), 1):
                units = []
                for i in range(count):
                    units.append(
                        Unit(channels, width, 2 if i == 0 < number - 1 else 1, not small and i == number - 1 == 0)
                    )
                    channels = 4 * width if block == "bottleneck" else width
                self.add_module(f"layer{number}", nn.Sequential(*units))
            self.last_bn = nn.BatchNorm2d(channels)
            self.fc = nn.Linear(channels, classes)

        def forward(self, x: Any) -> Any:
            x = self.conv1(x)
            if not small:
                x = max_pool2d(relu(self.bn1(x)), 3, 2, 1)
            for number in range(1, len(stages) + 1):
                x = getattr(self, f"layer{number}")(x)
            return self.fc(relu(self.last_bn(x)).mean((2, 3)))

    return Network().to(torch.float64)


@pytest.mark.parametrize(
    ("stages", "block"),
    [((2, 2, 2, 2), "basic"), ((1, 2, 1, 1), "bottleneck"), ((2, 2, 2), "bottleneck"), ((1, 2, 1), "basic")],
)
def test_the_same_architecture_in_pytorch(
    stages: Sequence[int], block: Any, torch_network: Any, initial_values: Any
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is missing")
    small = len(stages) == 3
    graph = forward_graph(preact_resnet(stages, 5, block=block), (2, 3, 32, 32), "float64")
    values = initial_values(graph)
    theirs = in_pytorch(stages, (16, 32, 64) if small else (64, 128, 256, 512), block, 5, small)
    assert {n for n in theirs.state_dict() if "num_batches" not in n} == {
        t.name for t in graph.with_role(Role.PARAMETER, Role.BUFFER)
    }
    theirs.load_state_dict({n: torch.tensor(v) for n, v in values.items()}, strict=False)
    images, labels = np.random.default_rng(0).standard_normal((2, 3, 32, 32)), np.array([1, 3])
    ours = torch_network(graph, values)
    loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(images)), torch.tensor(labels))
    loss.backward()
    assert ours.loss(images, labels) == pytest.approx(loss.item(), rel=1e-12)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(ours.gradients[name], parameter.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: preact_resnet((3, 4)), ("three or four positive whole numbers", "(3, 4)")),
        (lambda: preact_resnet((3, 4, 0)), ("three or four positive whole numbers", "(3, 4, 0)")),
        (lambda: preact_resnet((1, 1, 1), block="wide"), ("'basic' or 'bottleneck'", "'wide'")),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_refused(make: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert all(part in str(caught.value) for part in parts)
