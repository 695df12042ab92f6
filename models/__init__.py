"""Networks built from layers: AlexNet, VGG and residual networks of any depth."""

from .alexnet import alexnet
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
