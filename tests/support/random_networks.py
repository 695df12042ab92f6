"""Small random networks, and plans for them, for tests of everything that must hold for any network."""

from __future__ import annotations

import random

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.layers import (
    SGD,
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    Graph,
    Identity,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    Tanh,
    forward_graph,
    training_graph,
)
from bathyal.layers.merge import Add, Concat
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state


def random_network(seed: int) -> Sequential:
    """Convolutions with all that may stand between them, residual blocks and branches; dropout and batch norm too."""
    rng = random.Random(seed)
    layers: list[Layer] = [Conv2d(rng.choice((4, 6)), 3, padding=1, bias=rng.random() < 0.5)]
    for _ in range(rng.randint(2, 6)):
        layers += _part(rng)
    if rng.random() < 0.5:
        layers.append(GlobalAvgPool2d())
    layers.append(Flatten())
    if rng.random() < 0.5:
        layers += [Linear(12), ReLU(), Dropout(0.4)]
    layers.append(Linear(7))
    return Sequential(*layers, name=f"random{seed}")


def _part(rng: random.Random) -> list[Layer]:
    channels = rng.choice((4, 6, 8))
    match rng.randrange(8):
        case 0:
            return [Conv2d(channels, 3, padding=1), ReLU()]
        case 1:
            return [Conv2d(channels, 3, padding=1, bias=False), BatchNorm2d(), ReLU()]
        case 2:
            return [rng.choice((Sigmoid(), Tanh(), Dropout(0.3), LocalResponseNorm(3), BatchNorm2d()))]
        case 3:
            return [rng.choice((MaxPool2d(3, 1, 1), AvgPool2d(3, 1, 1)))]
        case 4:
            body = Sequential(Conv2d(channels, 1), BatchNorm2d(), ReLU(), Conv2d(channels, 3, padding=1), BatchNorm2d())
            return [Residual(body, Conv2d(channels, 1), ReLU())]
        case 5:
            return [Residual(Sequential(ReLU(), Dropout(0.2)))]
        case 6:
            return [Branches(Conv2d(channels, 1), Conv2d(channels, 3, padding=1), Identity(), merge=Concat())]
        case _:
            return [Branches(Conv2d(channels, 1), Sequential(Conv2d(channels, 1), Tanh()), merge=Add())]


def sharing_network(seed: int) -> Sequential:
    """A random network in which layers and containers stand at several places, with the same parameters at each."""
    rng = random.Random(f"sharing {seed}")
    channels = rng.choice((4, 8))
    norm, convolution = BatchNorm2d(), Conv2d(channels, 3, padding=1, bias=rng.random() < 0.5)
    block = Residual(Sequential(convolution, norm, ReLU()), activation=rng.choice((None, ReLU())))
    wide = Sequential(Conv2d(channels, 1), Dropout(0.3), rng.choice((Tanh(), norm)))
    shared: list[Layer] = [norm, convolution, block, wide, Branches(block, convolution, Identity(), merge=Add())]
    layers: list[Layer] = [Conv2d(channels, 3, padding=1)]
    for _ in range(2):
        layers.append(rng.choice(shared))
        if rng.random() < 0.5:
            # Another size of image: the layers around it want other layouts of the same weights.
            layers.append(rng.choice((MaxPool2d(3, 2, 1), AvgPool2d(3, 1, 1), Conv2d(channels, 1))))
    full = Linear(6)
    layers += [rng.choice(shared[:2]), GlobalAvgPool2d(), Flatten(), Linear(6), full, Sigmoid(), full, Linear(7)]
    return Sequential(*layers, name=f"sharing{seed}")


def step_problem(network: Layer, shape: tuple[int, ...], kernels: Kernels = Kernels.FIXED) -> Problem:
    """A training step of a network as a planner sees it, with times that follow from the sizes."""
    backend = NullBackend()
    graph = lower(training_graph(forward_graph(network, shape), SGD(0.1, momentum=0.9)), backend)
    return Problem(graph, estimate(graph, backend), kernels, lay_out_state(graph))


def random_problem(seed: int, kernels: Kernels = Kernels.FIXED) -> Problem:
    """A random network as a planner sees it."""
    return step_problem(random_network(seed), (3, 3, 8, 8), kernels)


def natural_order(graph: Graph) -> list[int]:
    """Every operation once, in the graph's order."""
    return [op.id for op in graph.ops]
