"""What PyTorch calls the arguments of a layer or an optimizer, in its order, and what its spelling becomes here.

A call in PyTorch's order that would mean something else here, or that names an argument that is not here, is refused
before the object is made, with the call that means the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..memory.arguments import show
from ..memory.errors import ConfigError

RENAMED: Mapping[str, str] = MappingProxyType({"lr": "learning_rate"})
"""Arguments that have another name here."""
INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "in_channels": "input channels are inferred",
        "num_features": "the channels are inferred",
        "in_features": "input features are inferred",
        "inplace": "the planner decides what runs in place",
        "params": "the trainer hands the parameters over",
        "dtype": "Trainer(dtype=...) says the type",
        "device": "Trainer(device=...) says what computes",
    }
)
"""What takes the place of arguments that are not here."""


def refuse_pytorch_spelling(
    made: type, order: Sequence[str], given: Sequence[object], named: Mapping[str, object]
) -> None:
    """Refuse arguments that PyTorch takes and this class does not, or takes in another order.

    Calls with arguments that neither takes pass; Python refuses these.

    Args:
        made: the class, whose `__init__` says which arguments it takes, and which by position.
        order: names of PyTorch's arguments in PyTorch's order, as they are called here where they are here.
        given: the arguments given by position.
        named: the arguments given by name.

    Raises:
        ConfigError: says what is to be written instead.
    """
    code = made.__init__.__code__  # type: ignore[misc]  # of a class with arguments of its own
    by_position = code.co_varnames[1 : code.co_argcount]
    taken = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    foreign = [n for n in named if n not in taken and (n in order or n in RENAMED)]
    renamed = {RENAMED.get(n, n) for n in named}
    foreign_order = len(given) > len(by_position) or any(n in renamed for n in by_position[: len(given)])
    if not (foreign_order or foreign) or len(given) > len(order):
        return
    names = order if foreign_order else by_position
    values = dict(zip(names, given, strict=False)) | {RENAMED.get(n, n): v for n, v in named.items()}
    missing = [n for n in values if n not in taken]
    reasons = ", ".join(INSTEAD.get(n, f"there is no {n}") for n in missing)
    name = made.__name__
    raise ConfigError(
        name,
        f"{name}({', '.join(by_position)}), the rest by name",
        _write(name, given, named),
        f"That is PyTorch's spelling ({', '.join([*order[: len(given)], *named])})"
        + (f"; here {reasons}" if reasons else "; here it is given by name")
        + f": write {_write_own(name, by_position, taken, values)}.",
    )


def _write(name: str, given: Sequence[object], named: Mapping[str, object]) -> str:
    parts = [*map(show, given), *(f"{n}={show(v)}" for n, v in named.items())]
    return f"{name}({', '.join(parts)})"


def _write_own(name: str, by_position: Sequence[str], taken: Sequence[str], values: Mapping[str, object]) -> str:
    """Write the call of this package: first what goes by position as far as it is there, then the rest by name."""
    first = []
    for own in by_position:
        if own not in values:
            break
        first.append(own)
    rest = {n: values[n] for n in taken if n in values and n not in first}
    return _write(name, [values[n] for n in first], rest)
