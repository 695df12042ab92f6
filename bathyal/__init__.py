"""Bathyal trains networks deeper than the memory: give it a network and a number of bytes."""

from .engine.openmp import wait_passively

# Before anything below loads a library that uses OpenMP.
wait_passively()

from . import layers, models
from .engine.backends.reference.numpy_kernel import NumpyKernel, OpSpec
from .engine.backends.registry import BackendOptions, register_backend, unregister_backend
from .engine.data.image_folder import ImageFolder
from .engine.data.sources import ArrayDataset, FromIterable, Source
from .engine.data.synthetic import Synthetic, digits
from .engine.operations import register_operation, unregister_operation
from .engine.results import Evaluation, StepResult
from .engine.trainer import Trainer
from .layers import (
    SGD,
    Add,
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Concat,
    Constant,
    Container,
    Conv2d,
    CrossEntropy,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    Graph,
    GraphBuilder,
    He,
    Identity,
    Layer,
    Linear,
    LocalResponseNorm,
    Loss,
    MaxPool2d,
    Normal,
    OpKind,
    Optimizer,
    ReLU,
    Residual,
    Sequential,
    ShapeRule,
    Sigmoid,
    Tanh,
    Target,
    TensorSpec,
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
    NonFiniteError,
    PlanError,
    ShapeError,
)
from .memory.sizes import format_size, parse_size
from .scheduler.plan.steps import Plan
from .scheduler.strategies import Strategy, StrategyKind, register_strategy, unregister_strategy

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Add",
    "ArrayDataset",
    "AvgPool2d",
    "BackendOptions",
    "BatchNorm2d",
    "BathyalError",
    "Branches",
    "BudgetError",
    "CheckpointError",
    "Concat",
    "ConfigError",
    "Constant",
    "Container",
    "Conv2d",
    "CrossEntropy",
    "DataError",
    "DeviceError",
    "Dropout",
    "Evaluation",
    "Flatten",
    "FromIterable",
    "GlobalAvgPool2d",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "He",
    "Identity",
    "ImageFolder",
    "Layer",
    "Linear",
    "LocalResponseNorm",
    "Loss",
    "MaxPool2d",
    "NonFiniteError",
    "Normal",
    "NumpyKernel",
    "OpKind",
    "OpSpec",
    "Optimizer",
    "Plan",
    "PlanError",
    "ReLU",
    "Residual",
    "Sequential",
    "ShapeError",
    "ShapeRule",
    "Sigmoid",
    "Source",
    "StepResult",
    "Strategy",
    "StrategyKind",
    "Synthetic",
    "Tanh",
    "Target",
    "TensorSpec",
    "Trainer",
    "Uniform",
    "Xavier",
    "__version__",
    "digits",
    "format_size",
    "layers",
    "models",
    "parse_size",
    "register_backend",
    "register_operation",
    "register_strategy",
    "unregister_backend",
    "unregister_operation",
    "unregister_strategy",
]
