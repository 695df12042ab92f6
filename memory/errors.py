"""The errors that a user can meet.

Each of them carries the same four fields, so that a message always says where it happened, what was expected, what came
instead and what to do. Faults of the package itself are `assert`s, not these.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NoReturn


class BathyalError(Exception):
    """Base of all errors that a user can cause or meet.

    Attributes:
        where: the layer, file, option or step concerned.
        expected: what would have been right.
        actual: what came instead.
        hint: what to do about it; may be empty.
    """

    def __init__(self, where: str, expected: str, actual: str, hint: str = "") -> None:
        self.where = where
        self.expected = expected
        self.actual = actual
        self.hint = hint
        text = f"{where}: expected {expected}, got {actual}"
        super().__init__(f"{text}. {hint}" if hint else text)


class ConfigError(BathyalError):
    """An option, a size, a name or an argument that makes no sense."""


class ShapeError(BathyalError):
    """A tensor whose shape or type does not fit the layer that it reaches."""


class GraphError(BathyalError):
    """A network that is not well formed: a name given twice, an operation of unknown kind."""


class BudgetError(BathyalError):
    """A number of bytes that cannot work; the error says the smallest that can.

    Attributes:
        least_bytes: the smallest budget that works, where it is known; else 0.
    """

    def __init__(self, where: str, expected: str, actual: str, hint: str = "", least_bytes: int = 0) -> None:
        super().__init__(where, expected, actual, hint)
        self.least_bytes = least_bytes


class PlanError(BathyalError):
    """A plan that breaks a rule: found by the verifier, never by a crash while training."""


class DataError(BathyalError):
    """A batch, a label or an image file that cannot be used as it is."""


class NonFiniteError(BathyalError):
    """Numbers of a step, of its weights or of what would be saved that are infinite or none."""


class CheckpointError(BathyalError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class DeviceError(BathyalError):
    """A device, a queue or a library that is missing or failed."""


def one_of(where: str, value: str, allowed: Sequence[str]) -> str:
    """Return `value`.

    Raises:
        ConfigError: it is not allowed; the error names the nearest that is.
    """
    if not isinstance(value, str) or value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        raise ConfigError(
            where, "one of " + ", ".join(allowed), repr(value), f"Did you mean {near[0]!r}?" if near else ""
        )
    return value


def unreachable(value: NoReturn) -> NoReturn:
    """Mark the branch that a closed union never takes; the type checker proves it."""
    raise AssertionError(f"not a member of the closed union: {value!r}")
