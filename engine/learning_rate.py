"""The learning rate of a run: a number, or a function of the steps done."""

from __future__ import annotations

from collections.abc import Callable

from ..layers.optimizers.optimizer import require_rate

LearningRate = float | Callable[[int], float]
"""A number, or a function of the number of steps done so far."""


def require_learning_rate(value: object) -> LearningRate:
    """Return `value`; what a function returns is checked when it is called.

    Raises:
        ConfigError: it is neither a function nor a finite number of at least 0.
    """
    return value if callable(value) else require_rate("learning_rate", value)


def find_rate(learning_rate: LearningRate, step: int) -> float:
    """Return the learning rate of the step that follows after so many.

    Raises:
        ConfigError: the function gives no finite number of at least 0.
    """
    return require_rate("learning_rate", learning_rate(step) if callable(learning_rate) else learning_rate)
