"""VGG: 3×3 convolutions in five groups with a pooling layer after each, then three fully connected layers."""

from __future__ import annotations

from ..layers import (
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    He,
    Layer,
    Linear,
    MaxPool2d,
    Normal,
    ReLU,
    Sequential,
)
from ..memory.arguments import Switch
from .variant import read_classes

WIDTHS = (64, 128, 256, 512, 512)
"""Filters of the five groups."""


def vgg11(classes: int = 1000, *, batch_norm: bool = False) -> Sequential:
    """VGG with 8 convolutions (configuration A), for 224² images; see `vgg16` for sizes and names."""
    return _vgg("vgg11", (1, 1, 2, 2, 2), classes, batch_norm)


def vgg13(classes: int = 1000, *, batch_norm: bool = False) -> Sequential:
    """VGG with 10 convolutions (configuration B), for 224² images; see `vgg16` for sizes and names."""
    return _vgg("vgg13", (2, 2, 2, 2, 2), classes, batch_norm)


def vgg16(classes: int = 1000, *, batch_norm: bool = False) -> Sequential:
    """VGG with 13 convolutions (configuration D), for 224² images: 138,357,544 parameters, 138,365,992 with batch norm.

    Parameter names and first values are torchvision's: convolutions He over fan out, fully connected layers normal
    with standard deviation 0.01. There is no adaptive pooling before them (at 224² it would change nothing): the first
    takes as many features as the images leave, from 32² up. Source: Simonyan and Zisserman, 2014.
    """
    return _vgg("vgg16", (2, 2, 3, 3, 3), classes, batch_norm)


def vgg19(classes: int = 1000, *, batch_norm: bool = False) -> Sequential:
    """VGG with 16 convolutions (configuration E), for 224² images; see `vgg16` for sizes and names."""
    return _vgg("vgg19", (2, 2, 4, 4, 4), classes, batch_norm)


def _vgg(name: str, convolutions: tuple[int, ...], classes: int, batch_norm: bool) -> Sequential:
    classes = read_classes(name, classes)
    batch_norm = Switch().read(name, "batch_norm", batch_norm)
    features: list[Layer] = []
    for width, count in zip(WIDTHS, convolutions, strict=True):
        for _ in range(count):
            features.append(Conv2d(width, 3, padding=1, initializer=He("out")))
            if batch_norm:
                features.append(BatchNorm2d())
            features.append(ReLU())
        features.append(MaxPool2d(2, 2))
    normal = Normal(0.0, 0.01)
    classifier = Sequential(
        Linear(4096, initializer=normal),
        ReLU(),
        Dropout(0.5),
        Linear(4096, initializer=normal),
        ReLU(),
        Dropout(0.5),
        Linear(classes, initializer=normal),
        name="classifier",
    )
    return Sequential(
        Sequential(*features, name="features"),
        Flatten(name="flatten"),
        classifier,
        name=f"{name}_bn" if batch_norm else name,
    )
