"""The first values of parameters, which follow from a seed and the parameter's name, not from the order of creation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..memory.aligned import allocate_aligned
from ..memory.arguments import Argument, Choice, Instance, Number, read_fields


@dataclass(frozen=True, slots=True)
class Constant:
    """Every element is `value`."""

    value: float = 0.0

    def __post_init__(self) -> None:
        _read_arguments(self)


@dataclass(frozen=True, slots=True)
class Normal:
    """Independent normal numbers with the given mean and standard deviation."""

    mean: float = 0.0
    std: float = 0.01

    def __post_init__(self) -> None:
        _read_arguments(self)


@dataclass(frozen=True, slots=True)
class Xavier:
    """Uniform in ±√(6 / (fan_in + fan_out)). Source: Glorot and Bengio, 2010."""


@dataclass(frozen=True, slots=True)
class He:
    """Normal with standard deviation √(2 / fan), for layers followed by ReLU. Source: He et al., 2015.

    Attributes:
        fan: "in" keeps the variance of the forward pass, "out" that of the backward pass.
    """

    fan: str = "in"

    def __post_init__(self) -> None:
        _read_arguments(self)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform in ±1/√fan_in, the usual default of fully connected layers."""


Initializer = Constant | Normal | Xavier | He | Uniform


KINDS: tuple[type[Initializer], ...] = (Constant, Normal, Xavier, He, Uniform)
ARGUMENTS: Mapping[str, Argument] = MappingProxyType(
    {"value": Number(), "mean": Number(), "std": Number(0), "fan": Choice(("in", "out"))}
)
"""What the arguments of initializers may be, by name."""
AN_INITIALIZER = Instance(KINDS, "He() or Xavier()")
"""What a layer's argument `initializer` may be."""


def _read_arguments(initializer: object) -> None:
    """Read what an initializer was made with; raises ConfigError for what its arguments cannot be."""
    own = {name: kind for name, kind in ARGUMENTS.items() if hasattr(initializer, name)}
    read_fields(initializer, own, type(initializer).__name__)


DRAWN_AT_A_TIME = 2**16
"""Numbers of a parameter that are drawn at a time."""


def to_plain(initializer: Initializer | None) -> list[Any] | None:
    """Return the name and the arguments of an initializer in a form that JSON can hold."""
    return None if initializer is None else [type(initializer).__name__, asdict(initializer)]


def from_plain(plain: list[Any] | None) -> Initializer | None:
    """Return the initializer of which `to_plain` made `plain`; raises KeyError for an unknown name."""
    if plain is None:
        return None
    name, arguments = plain
    return {kind.__name__: kind for kind in KINDS}[name](**arguments)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the inputs per output and the outputs per input of a weight of shape `(out, in, …)`."""
    receptive = math.prod(shape[2:])
    return shape[1] * receptive if len(shape) > 1 else shape[0], shape[0] * receptive


def initialize(
    initializer: Initializer, shape: tuple[int, ...], dtype: str, *, seed: int, name: str
) -> npt.NDArray[np.floating]:
    """Return the first values of the parameter `name`, from a counter-based generator with the key (seed, name).

    They are drawn in float64 and rounded, so float32 and float64 networks start from the same numbers.
    """
    (values,) = initialize_rows(initializer, shape, dtype, shape[:1], seed=seed, name=name)
    return values


def initialize_rows(
    initializer: Initializer, shape: tuple[int, ...], dtype: str, rows: Sequence[int], *, seed: int, name: str
) -> Iterator[npt.NDArray[np.floating]]:
    """Yield the values that `initialize` returns in consecutive pieces of `rows` rows, one in memory at a time."""
    if isinstance(initializer, Constant):
        yield from (np.full((count, *shape[1:]), initializer.value, dtype) for count in rows)
        return
    digest = hashlib.sha256(name.encode()).digest()
    key = np.array([seed % 2**64, int.from_bytes(digest[:8], "little")], np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key))
    for count in rows:
        wanted = (count, *shape[1:])
        # Aligned, because a library that lays the numbers out anew would else copy them first.
        piece = allocate_aligned(math.prod(wanted) * np.dtype(dtype).itemsize).view(dtype).reshape(wanted)
        numbers = piece.reshape(-1)
        # A generator gives its numbers in one sequence, however many are asked for at a time: few, because they are
        # float64 and lie beside the piece.
        for first in range(0, numbers.size, DRAWN_AT_A_TIME):
            part = numbers[first : first + DRAWN_AT_A_TIME]
            part[...] = _draw(rng, initializer, part.shape, *fans(shape))
        yield piece


def _draw(
    rng: np.random.Generator,
    initializer: Normal | Xavier | He | Uniform,
    piece: tuple[int, ...],
    fan_in: int,
    fan_out: int,
) -> npt.NDArray[np.float64]:
    if isinstance(initializer, Normal):
        return rng.normal(initializer.mean, initializer.std, piece)
    if isinstance(initializer, He):
        return rng.normal(0.0, math.sqrt(2.0 / (fan_in if initializer.fan == "in" else fan_out)), piece)
    bound = math.sqrt(6.0 / (fan_in + fan_out)) if isinstance(initializer, Xavier) else 1.0 / math.sqrt(fan_in)
    return rng.uniform(-bound, bound, piece)
