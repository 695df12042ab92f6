"""What a layer's rules give is brought to plain values, and refused by the layer's name where it is none.

Shape rules and attributes may come from outside the package. A graph holds them as plain Python values, since its
fingerprint, its signatures and its JSON are made of them. Not checked: whether they describe what a kernel computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ..memory.errors import GraphError, ShapeError
from ..memory.sizes import format_size
from .graph import TensorSpec


def read_attrs(where: str, attrs: object) -> Mapping[str, Any]:
    """Return attributes with numpy's numbers as Python's and lists as tuples.

    Raises:
        GraphError: another value than numbers, truth values, texts, None and sequences of such.
    """
    if not isinstance(attrs, Mapping):
        raise GraphError(where, "a mapping from names to plain values", repr(attrs))
    return MappingProxyType({name: _read_value(where, name, value) for name, value in attrs.items()})


def _read_value(where: str, name: object, value: object) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return tuple(_read_value(where, name, part) for part in value)
    if not isinstance(name, str) or not (value is None or isinstance(value, (bool, int, float, str))):
        expected = "names with numbers, truth values, texts, None or tuples of such"
        raise GraphError(where, expected, f"{name!r}: a {type(value).__name__}")
    return value


def require_bytes(where: str, spec: TensorSpec, most: int, hint: str) -> None:
    """Refuse a tensor of more than `most` bytes.

    Raises:
        ShapeError: says how many it has.
    """
    if spec.nbytes > most:
        found = f"shape {spec.shape}, {format_size(spec.nbytes)}"
        raise ShapeError(where, f"a tensor of at most {format_size(most)}", found, hint)


def read_specs(where: str, made: object) -> tuple[TensorSpec, ...]:
    """Return what a shape rule made, with sizes as Python's whole numbers and types by numpy's names.

    Raises:
        GraphError: it is no sequence of at least one `TensorSpec` with sizes of at least 1 and a type of numpy's.
    """
    if not isinstance(made, (tuple, list)) or not made or not all(isinstance(spec, TensorSpec) for spec in made):
        hint = "A shape rule returns a tuple, also for one output: (TensorSpec(shape, dtype),)."
        raise GraphError(where, "a tuple of TensorSpec from the shape rule", repr(made), hint)
    return tuple(_read_spec(where, spec) for spec in made)


def _read_spec(where: str, spec: TensorSpec) -> TensorSpec:
    sizes = tuple(spec.shape) if isinstance(spec.shape, (tuple, list)) else ()
    if not sizes or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1 for n in sizes):
        raise GraphError(where, "sizes that are whole numbers of at least 1", f"shape {spec.shape!r}")
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biufc":
        raise GraphError(where, "a type of numbers by numpy's name, such as 'float32'", repr(spec.dtype))
    return TensorSpec(tuple(map(int, sizes)), dtype.name)
