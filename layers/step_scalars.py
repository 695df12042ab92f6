"""The numbers that the host writes before every training step, in the float64 tensor `scalars`.

First come the learning rate and the loss scale, then what the optimizer names, in its order. The tensor's shape is
part of the graph; its values are not, so that a schedule of the learning rate needs no new plan.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..memory.errors import ConfigError
from .graph import TensorSpec
from .optimizers.optimizer import Optimizer

LEARNING_RATE, LOSS_SCALE, FIRST_OWN = 0, 1, 2
"""Positions in the tensor; the optimizer's own scalars begin at the last."""


def specify_scalars(optimizer: Optimizer) -> TensorSpec:
    """Return shape and type of the tensor that holds a step's learning rate, loss scale and optimizer's own numbers.

    It is a vector of float64, with one element for each number that the optimizer computes for a step beside these two.
    """
    return TensorSpec((FIRST_OWN + len(_names(optimizer)),), "float64")


def compute_scalars(
    optimizer: Optimizer, step: int, learning_rate: float, loss_scale: float = 1.0
) -> npt.NDArray[np.float64]:
    """The values of the tensor `scalars` for one step.

    Args:
        optimizer: it computes its own scalars.
        step: number of the step, from 1.
        learning_rate: of this step.
        loss_scale: factor of the gradient of the loss.

    Raises:
        ConfigError: the optimizer gives other names than for the first step, or a value that is not finite.
    """
    own, names = optimizer.step_scalars(step, learning_rate), _names(optimizer)
    if tuple(own) != names:
        where = f"{type(optimizer).__name__}.step_scalars({step}, {learning_rate})"
        raise ConfigError(where, f"the names of the first step, {list(names)}", f"{list(own)}")
    for name, value in own.items():
        if not math.isfinite(value):
            raise ConfigError(f"{type(optimizer).__name__}, step {step}", f"a finite {name!r}", str(value))
    return np.array([learning_rate, loss_scale, *own.values()], np.float64)


def _names(optimizer: Optimizer) -> tuple[str, ...]:
    """Names of the optimizer's own scalars, in their order in the tensor."""
    return tuple(optimizer.step_scalars(1, optimizer.learning_rate))
