"""Bathyal trains networks deeper than the memory: give it a network and a number of bytes."""

import os

# Waiting threads of OpenMP spin by default, which on a busy machine turns microseconds into milliseconds. It is read
# when the library loads, so it must be set before anything below is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from . import layers, models
from .engine.data import ArrayDataset, FromIterable, Source
from .engine.image_folder import ImageFolder
from .engine.synthetic import Synthetic, digits
from .engine.trainer import Evaluation, StepResult, Trainer
from .layers import (
    SGD,
    Add,
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Concat,
    Constant,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    Graph,
    He,
    Identity,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Normal,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    Tanh,
    Uniform,
    Xavier,
)
from .memory.errors import (
    BathyalError,
    BudgetError,
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    GraphError,
    PlanError,
    ShapeError,
)
from .memory.sizes import format_size, parse_size
from .scheduler.plan import Plan

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Add",
    "ArrayDataset",
    "AvgPool2d",
    "BatchNorm2d",
    "BathyalError",
    "Branches",
    "BudgetError",
    "CheckpointError",
    "Concat",
    "ConfigError",
    "Constant",
    "Conv2d",
    "DataError",
    "DeviceError",
    "Dropout",
    "Evaluation",
    "Flatten",
    "FromIterable",
    "GlobalAvgPool2d",
    "Graph",
    "GraphError",
    "He",
    "Identity",
    "ImageFolder",
    "Layer",
    "Linear",
    "LocalResponseNorm",
    "MaxPool2d",
    "Normal",
    "Plan",
    "PlanError",
    "ReLU",
    "Residual",
    "Sequential",
    "ShapeError",
    "Sigmoid",
    "Source",
    "StepResult",
    "Synthetic",
    "Tanh",
    "Trainer",
    "Uniform",
    "Xavier",
    "__version__",
    "digits",
    "format_size",
    "layers",
    "models",
    "parse_size",
]
