"""AlexNet: the network of the SuperNeurons paper, and today's with one tower and fewer filters."""

from __future__ import annotations

from ..layers import (
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    Sequential,
    Uniform,
    Xavier,
)
from .variant import Variant, check_variant, read_classes


def alexnet(classes: int = 1000, *, variant: Variant = "today") -> Sequential:
    """AlexNet: five convolutions and three fully connected layers.

    "paper": 227² images, 96/256/384/384/256 filters without groups, each of the first two followed by local response
    normalization; Xavier. 62,378,344 parameters. Source: Krizhevsky et al., 2012, as drawn in Wang et al.,
    "SuperNeurons", 2018.

    "today": 224² images, 64/192/384/256/256 filters, no normalization; parameter names and first values distributed
    as in torchvision. 61,100,840 parameters. Source: Krizhevsky, "One weird trick", 2014.

    The first fully connected layer takes as many features as the images leave, from 63² images ("today") or 64²
    ("paper") up; smaller ones raise ShapeError in the last pooling layer when the graph is built.

    Raises:
        ConfigError: an unknown variant.
    """
    classes = read_classes("alexnet", classes)
    return _paper(classes) if check_variant("alexnet", variant) == "paper" else _today(classes)


def _paper(classes: int) -> Sequential:
    xavier = Xavier()
    return Sequential(
        Conv2d(96, 11, stride=4, initializer=xavier, name="conv1"),
        ReLU(name="relu1"),
        _response_norm("norm1"),
        _pool("pool1"),
        Conv2d(256, 5, padding=2, initializer=xavier, name="conv2"),
        ReLU(name="relu2"),
        _response_norm("norm2"),
        _pool("pool2"),
        Conv2d(384, 3, padding=1, initializer=xavier, name="conv3"),
        ReLU(name="relu3"),
        Conv2d(384, 3, padding=1, initializer=xavier, name="conv4"),
        ReLU(name="relu4"),
        Conv2d(256, 3, padding=1, initializer=xavier, name="conv5"),
        ReLU(name="relu5"),
        _pool("pool5"),
        Flatten(name="flatten"),
        Linear(4096, initializer=xavier, name="fc6"),
        ReLU(name="relu6"),
        Dropout(0.5, name="drop6"),
        Linear(4096, initializer=xavier, name="fc7"),
        ReLU(name="relu7"),
        Dropout(0.5, name="drop7"),
        Linear(classes, initializer=xavier, name="fc8"),
        name="alexnet",
    )


def _response_norm(name: str) -> LocalResponseNorm:
    # The paper's α is not divided by the window's size, ours is.
    return LocalResponseNorm(size=5, alpha=5 * 1e-4, beta=0.75, k=2.0, name=name)


def _pool(name: str) -> MaxPool2d:
    # Caffe, which the paper's networks come from, rounds up; at 227² nothing is left to round.
    return MaxPool2d(3, 2, ceil_mode=True, name=name)


def _today(classes: int) -> Sequential:
    usual = Uniform()
    features = Sequential(
        Conv2d(64, 11, stride=4, padding=2, initializer=usual),
        ReLU(),
        MaxPool2d(3, 2),
        Conv2d(192, 5, padding=2, initializer=usual),
        ReLU(),
        MaxPool2d(3, 2),
        Conv2d(384, 3, padding=1, initializer=usual),
        ReLU(),
        Conv2d(256, 3, padding=1, initializer=usual),
        ReLU(),
        Conv2d(256, 3, padding=1, initializer=usual),
        ReLU(),
        MaxPool2d(3, 2),
        name="features",
    )
    classifier = Sequential(
        Dropout(0.5),
        Linear(4096),
        ReLU(),
        Dropout(0.5),
        Linear(4096),
        ReLU(),
        Linear(classes),
        name="classifier",
    )
    return Sequential(features, Flatten(name="flatten"), classifier, name="alexnet")
