"""A network with every kind of layer, for tests over all kinds of operation."""

from __future__ import annotations

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
)


def everything() -> Sequential:
    """A network with every kind of layer, whose tensors are too large to hide an allocation."""
    return Sequential(
        Conv2d(16, 3, padding=1, bias=True),
        BatchNorm2d(),
        ReLU(),
        Branches(Conv2d(16, 1), Conv2d(16, 3, padding=2, dilation=2, groups=4, bias=False), Identity(), merge=Add()),
        Branches(Conv2d(12, (1, 3), padding=(0, 1)), Conv2d(8, 1, bias=False), merge=Concat()),
        LocalResponseNorm(5, alpha=0.3, beta=0.6),
        MaxPool2d(3, 2, 1, ceil_mode=True),
        Sigmoid(),
        Conv2d(40, 3, stride=2, padding=1),
        AvgPool2d(2, 1, 1, count_include_pad=False),
        Tanh(),
        Dropout(0.3),
        Branches(Flatten(), Sequential(GlobalAvgPool2d(), Flatten()), merge=Concat()),
        Linear(12),
    )
