"""Networks built from layers: AlexNet, VGG, and residual networks of any depth, also with the activation first."""

from .alexnet import alexnet
from .preact_resnet import (
    preact_resnet,
    preact_resnet18,
    preact_resnet50,
    preact_resnet101,
    preact_resnet152,
    preact_resnet164,
    preact_resnet200,
    preact_resnet1001,
)
from .registry import MODELS, ModelEntry, build_model, find_model
from .resnet import (
    resnet,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
    resnet1001,
    resnet2500,
    small_resnet,
)
from .vgg import vgg11, vgg13, vgg16, vgg19

__all__ = [
    "MODELS",
    "ModelEntry",
    "alexnet",
    "build_model",
    "find_model",
    "preact_resnet",
    "preact_resnet18",
    "preact_resnet50",
    "preact_resnet101",
    "preact_resnet152",
    "preact_resnet164",
    "preact_resnet200",
    "preact_resnet1001",
    "resnet",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet1001",
    "resnet2500",
    "small_resnet",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
]
