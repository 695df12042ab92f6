"""What a network is made of, and the graphs that follow from it.

- A file for each family of layers declares these layers and their kinds of operation: `activation`, `convolution`,
  `dropout`, `linear`, `merge`, `normalization`, `pooling`, `shape`; `container` holds layers made of layers.
- `operations` says what a kind of operation declares, and `kinds` lists all of them.
- `graph` is the graph as plain data, `assembly` collects one, and `builder` builds the forward graph from layers.
- `pool_first` and `slabs` rewrite forward graphs; `modes` turns them into graphs for training, evaluation and
  prediction.
- `losses` and `optimizers` say what is asked of a loss and of an optimizer, and hold those of the package;
  `step_scalars` is the tensor of numbers that change from step to step.
- `initializers` gives parameters their first values.

Nothing here computes a network or plans its memory.
"""

from .activation import ReLU, Sigmoid, Tanh
from .builder import Container, GraphBuilder, Layer, forward_graph
from .container import Branches, Identity, Residual, Sequential
from .convolution import Conv2d
from .dropout import Dropout
from .graph import Graph, Op, Phase, Role, Tensor, TensorSpec
from .initializers import Constant, He, Normal, Uniform, Xavier
from .linear import Linear
from .losses.cross_entropy import CrossEntropy
from .losses.loss import Loss, Target
from .merge import Add, Concat
from .modes import evaluation_graph, prediction_graph, training_graph
from .normalization import BatchNorm2d, LocalResponseNorm
from .operations import BackwardBuilder, ModeBuilder, OpKind, ShapeRule, same_as_first
from .optimizers.optimizer import Optimizer
from .optimizers.sgd import SGD
from .pooling import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from .shape import Flatten

__all__ = [
    "SGD",
    "Add",
    "AvgPool2d",
    "BackwardBuilder",
    "BatchNorm2d",
    "Branches",
    "Concat",
    "Constant",
    "Container",
    "Conv2d",
    "CrossEntropy",
    "Dropout",
    "Flatten",
    "GlobalAvgPool2d",
    "Graph",
    "GraphBuilder",
    "He",
    "Identity",
    "Layer",
    "Linear",
    "LocalResponseNorm",
    "Loss",
    "MaxPool2d",
    "ModeBuilder",
    "Normal",
    "Op",
    "OpKind",
    "Optimizer",
    "Phase",
    "ReLU",
    "Residual",
    "Role",
    "Sequential",
    "ShapeRule",
    "Sigmoid",
    "Tanh",
    "Target",
    "Tensor",
    "TensorSpec",
    "Uniform",
    "Xavier",
    "evaluation_graph",
    "forward_graph",
    "prediction_graph",
    "same_as_first",
    "training_graph",
]
