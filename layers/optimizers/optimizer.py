"""What the package asks of an optimizer, from which updates, state, checkpoints and transfers follow.

An optimizer declares the operation that updates a parameter, what is fixed in it, which tensors it keeps for each
parameter, and which numbers change from step to step. The operation reads (weight, gradient, *slots, scalars) and
overwrites the weight and the slots in place; it has no outputs. Nothing here computes.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Protocol

from ...memory.arguments import Number
from ...memory.errors import ConfigError
from ..members import read_fixed_attrs, require_kind, require_members, require_names
from ..operations import OpKind

RATE = Number(0)
"""What a learning rate may be."""
MEMBERS = ("kind", "attrs", "learning_rate", "slots", "step_scalars")


class Optimizer(Protocol):
    """A rule by which parameters follow from their gradients.

    An object of any class serves that has these members; a frozen dataclass does well.
    """

    @property
    def kind(self) -> str:
        """Name of the update operation.

        The kind must be declared `flat`: each element of weight and slots follows from the same element of weight,
        gradient and slots and from the scalars, and where weight, gradient and slots are 0 they stay 0. Backends store
        tensors in layouts of their own, padded with zeros, run a flat operation over all bytes, and rely on padding
        that stays 0.
        """

    @property
    def attrs(self) -> Mapping[str, object]:
        """What is fixed in the update operations: plain values, part of every checkpoint's identity."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of a trainer that is given no other."""

    @property
    def slots(self) -> Mapping[str, float]:
        """Tensors of the shape of the parameter that live from step to step, by name, with their start values.

        The slot `exp_avg` of `conv1.weight` is the tensor `conv1.weight.exp_avg`.
        """

    def step_scalars(self, step: int, learning_rate: float) -> Mapping[str, float]:
        """Numbers that the update operations of one step read, the same names in the same order for every step.

        Args:
            step: number of the step, from 1.
            learning_rate: of this step.
        """


def name_slot(parameter: str, slot: str) -> str:
    """The name of the tensor that holds a slot of the parameter of that name."""
    return f"{parameter}.{slot}"


def require_rate(where: str, rate: object) -> float:
    """Return a learning rate as a float.

    Raises:
        ConfigError: it is no finite number of at least 0.
    """
    return float(RATE.read(where, "", rate))


def require_optimizer(value: object, kinds: Mapping[str, OpKind]) -> None:
    """Check that an object is an optimizer; `kinds` are the kinds of operation that are registered.

    Raises:
        ConfigError: it lacks a member, or has one that makes no sense; says which, and what was expected.
    """
    require_members("optimizer", value, MEMBERS, "SGD(0.1, momentum=0.9)")
    optimizer: Optimizer = value  # type: ignore[assignment]  # it has the members
    name = type(value).__name__
    if not require_kind(name, optimizer.kind, kinds).flat:
        hint = "Declare it so if it goes over its operands element by element: OpKind(..., flat=True)."
        raise ConfigError(f"{name}.kind", "a kind that is declared flat", repr(optimizer.kind), hint)
    read_fixed_attrs(name, optimizer.attrs)
    rate = require_rate(f"{name}.learning_rate", optimizer.learning_rate)
    _require_numbers(f"{name}.slots", optimizer.slots)
    if "gradient" in optimizer.slots:
        hint = "Call the slot previous_gradient, say."
        raise ConfigError(f"{name}.slots", "other names than that of the gradient itself", "'gradient'", hint)
    if not callable(optimizer.step_scalars):
        raise ConfigError(f"{name}.step_scalars", "a method of step and learning rate", repr(optimizer.step_scalars))
    _require_numbers(f"{name}.step_scalars(1, {rate})", optimizer.step_scalars(1, rate))


def _require_numbers(where: str, found: object) -> None:
    if not isinstance(found, Mapping):
        raise ConfigError(where, "a mapping from names to numbers", repr(found))
    require_names(where, tuple(found))
    for name, value in found.items():
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise ConfigError(where, f"a finite number for {name!r}", repr(value))
