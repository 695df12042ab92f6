"""The learning rate of a run: a number, or a function of the steps done."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable

from ..memory.errors import ConfigError

LearningRate = float | Callable[[int], float]
"""A number, or a function of the number of steps done so far."""


def require_learning_rate(value: object) -> LearningRate:
    """Return `value`; what a function returns is checked when it is called.

    Raises:
        ConfigError: it is neither a function nor a finite number of at least 0.
    """
    return value if callable(value) else require_rate(value)


def require_rate(value: object) -> float:
    """Return `value` as a float.

    Raises:
        ConfigError: it is no finite number of at least 0.
    """
    rate = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not 0 <= rate < math.inf:
        raise ConfigError("learning_rate", "a finite number of at least 0, or a function of the step", repr(value))
    return rate
