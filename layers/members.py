"""Whether an object that a program brings, such as an optimizer or a loss, has all that the package asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..memory.errors import ConfigError, GraphError
from .operations import OpKind
from .rules import read_attrs

RESERVED = ("kind", "slots")
"""What a checkpoint says of an optimizer or a loss beside its attributes."""


def require_members(where: str, value: object, members: Sequence[str], example: str) -> None:
    """Check that an object has the members of a protocol.

    Args:
        where: the choice that the object is made for, for the error.
        value: the object.
        members: names of all that the protocol asks for.
        example: an object that has them, in words.

    Raises:
        ConfigError: the object is a class instead of its instance, or lacks members; names those that are missing.
    """
    if isinstance(value, type):
        hint = f"Call the class: {value.__name__}(...) instead of {value.__name__}."
        raise ConfigError(where, f"an object such as {example}", f"the class {value.__name__}", hint)
    missing = [name for name in members if not hasattr(value, name)]
    if missing:
        expected = f"an object such as {example}, with {', '.join(members)}"
        raise ConfigError(where, expected, f"{value!r} without {', '.join(missing)}")


def read_fixed_attrs(where: str, attrs: object) -> Mapping[str, Any]:
    """Return the fixed attributes of an optimizer's or a loss's operation, as `read_attrs` reads those of layers.

    Raises:
        ConfigError: no mapping, a name that checkpoints use for something else, or another value than numbers, truth
            values, texts, None and sequences of such.
    """
    try:
        read = read_attrs(f"{where}.attrs", attrs)
    except GraphError as error:
        raise ConfigError(error.where, error.expected, error.actual, error.hint) from None
    for name in RESERVED:
        if name in read:
            raise ConfigError(f"{where}.attrs", f"names other than {' and '.join(RESERVED)}", repr(name))
    return read


def require_names(where: str, names: Sequence[str]) -> None:
    """Check that names can be parts of the names of tensors, and that each is given once.

    Raises:
        ConfigError: one is no identifier, or given twice.
    """
    if isinstance(names, str) or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise ConfigError(where, "names that are identifiers", repr(names))
    if len(set(names)) != len(names):
        raise ConfigError(where, "names that are given once", repr(names))


def require_kind(where: str, name: object, kinds: Mapping[str, OpKind]) -> OpKind:
    """Find the declaration of the operation that an object names as its `kind`.

    Raises:
        ConfigError: no operation of that name is registered.
    """
    if not isinstance(name, str) or name not in kinds:
        hint = f"Register it first: bathyal.register_operation(OpKind({name!r}, ...), ...)."
        raise ConfigError(f"{where}.kind", "the name of a registered kind of operation", repr(name), hint)
    return kinds[name]
