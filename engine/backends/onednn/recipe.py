"""What a recipe is: the primitive of the library that computes an operation, and where its arguments come from.

A recipe names the library's arguments by the position of the operand among inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....layers.graph import TensorSpec
from ....layers.operations import Attrs
from .handles import Descriptor, Engine, PrimitiveDescriptor

TRAINING, INFERENCE, BACKWARD = 64, 96, 128
"""Kinds of propagation, by the library's numbers."""

Around = Callable[[Callable[[], None], Sequence[int]], None]
"""Calls what runs a primitive, and looks at the operands, whose machine addresses it gets, before it or after it."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an operation: its logical shape and its layout."""

    spec: TensorSpec
    layout: Descriptor


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an operation is computed.

    Attributes:
        descriptor: of the first implementation; others follow from it.
        arguments: number of the library's argument → position among the operands.
        make_around: makes what is done beside running the primitive; None where that is nothing.
    """

    descriptor: PrimitiveDescriptor
    arguments: Mapping[int, int]
    make_around: Callable[[PrimitiveRequest], Around] | None = None


@dataclass(frozen=True, slots=True)
class PrimitiveRequest:
    """What a recipe is made from.

    Attributes:
        engine: the library.
        attrs: of the operation.
        inputs, outputs: its operands.
        repeat: whether kept outputs are there already.
    """

    engine: Engine
    attrs: Attrs
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    repeat: bool


MakeRecipe = Callable[[PrimitiveRequest], Recipe]


def overhang(size: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Return by how many pixels the last window ends behind the image, the padding there (negative: before it)."""
    return (outputs - 1) * stride + (kernel - 1) * dilation + 1 - size - padding
