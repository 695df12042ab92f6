"""What an argument may be: kinds that read a value into plain Python, or refuse it by the name of the argument.

A layer, an optimizer or another declaration lists the kinds of its arguments in a table, and all of them are read by
one function when the object is made. Numbers and truth values of numpy are taken and become Python's; a text is no
number, a truth value is no number either, and a size has an upper bound, so that a slip is refused before anything is
made of it. Not checked: whether the arguments of one object fit each other.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .errors import ConfigError, one_of

LARGEST_SIZE = 2**24
"""The most channels, features, classes, or elements of a window or its step along one axis."""
LARGEST_WHOLE = 2**63 - 1
LARGEST_NUMBER = float(np.finfo(np.float32).max)
"""Beyond this a number is infinite in the type that networks compute in."""
_LONGEST_TEXT = 80


class Argument(Protocol):
    """A kind of argument."""

    def read(self, where: str, name: str, value: object) -> object:
        """Return `value` as plain Python.

        Args:
            where: the object that is made, for the error.
            name: of the argument; empty where `where` says it already.
            value: as given.

        Raises:
            ConfigError: it is none of this kind.
        """


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`; `hint` says what to write in place of others."""

    least: int = 1
    most: int = LARGEST_WHOLE
    hint: str = ""

    def read(self, where: str, name: str, value: object) -> int:
        """Return the number as an int; raises ConfigError for what is none, or out of range."""
        if not is_whole(value, self.least, self.most):
            expected = "a whole number " + _describe_range(self.least, self.most, value)
            raise ConfigError(where, _name(name, expected), show(value), self.hint)
        return int(value)  # type: ignore[call-overload,no-any-return]  # it is a whole number


@dataclass(frozen=True, slots=True)
class Pair:
    """One whole number of at least `least`, or one for the height and one for the width."""

    least: int = 1
    hint: str = ""

    def read(self, where: str, name: str, value: object) -> int | tuple[int, int]:
        """Return an int or a tuple of two, as given; raises ConfigError for anything else, or out of range."""
        if is_whole(value, self.least, LARGEST_SIZE):
            return int(value)  # type: ignore[call-overload,no-any-return]  # it is a whole number
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            wrong = value
        else:
            wrong = next((n for n in value if not is_whole(n, self.least, LARGEST_SIZE)), None)
            if wrong is None:
                return int(value[0]), int(value[1])
        expected = "one or two whole numbers " + _describe_range(self.least, LARGEST_SIZE, wrong)
        raise ConfigError(where, _name(name, expected), show(value), self.hint)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from `least` to `most`, or below `most` where that is left out."""

    least: float = -LARGEST_NUMBER
    most: float = LARGEST_NUMBER
    without_most: bool = False
    hint: str = ""

    def read(self, where: str, name: str, value: object) -> float:
        """Return the number as Python's; raises ConfigError for what is none, not finite, or out of range."""
        number = _read_number(value)
        if not self.least <= number <= self.most or (self.without_most and number == self.most):
            raise ConfigError(where, _name(name, f"a number {self._describe()}"), show(value), self.hint)
        return number

    def _describe(self) -> str:
        if self.most < LARGEST_NUMBER:
            return f"from {self.least:g} to {'below ' if self.without_most else ''}{self.most:g}"
        return "that is finite" + (f" and at least {self.least:g}" if self.least > -LARGEST_NUMBER else "")


@dataclass(frozen=True, slots=True)
class Switch:
    """True or False."""

    hint: str = ""

    def read(self, where: str, name: str, value: object) -> bool:
        """Return the truth value; raises ConfigError for anything else, numbers included."""
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigError(where, _name(name, "True or False"), show(value), self.hint)
        return bool(value)


@dataclass(frozen=True, slots=True)
class Text:
    """A text."""

    def read(self, where: str, name: str, value: object) -> str:
        """Return the text; raises ConfigError for anything else."""
        if not isinstance(value, str):
            raise ConfigError(where, _name(name, "a text"), show(value))
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several texts."""

    allowed: tuple[str, ...]

    def read(self, where: str, name: str, value: object) -> str:
        """Return the text; raises ConfigError, which names the nearest, for any other."""
        if isinstance(value, str) and value in self.allowed:
            return value
        return one_of(f"{where}, {name}", value if isinstance(value, str) else show(value), self.allowed)


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of one of several classes, which `example` shows."""

    classes: tuple[type, ...]
    example: str

    def read(self, where: str, name: str, value: object) -> object:
        """Return the object; raises ConfigError for any other, such as the class in place of its instance."""
        if not isinstance(value, self.classes):
            called = isinstance(value, type) and issubclass(value, self.classes)
            hint = f"Call the class: {value.__name__}()." if called and isinstance(value, type) else ""
            raise ConfigError(where, _name(name, f"an object such as {self.example}"), show(value), hint)
        return value


@dataclass(frozen=True, slots=True)
class Maybe:
    """None, or what another kind takes."""

    kind: Argument

    def read(self, where: str, name: str, value: object) -> object:
        """Return None or what the kind reads; raises ConfigError as it does."""
        return None if value is None else self.kind.read(where, name, value)


def read_fields(owner: object, kinds: Mapping[str, Argument], where: str) -> None:
    """Read arguments that a frozen object was made with, and store in it what they are read as.

    Args:
        owner: the object, which has an attribute for each name.
        kinds: what each may be.
        where: what errors call the object.

    Raises:
        ConfigError: one is not of its kind.
    """
    for name, kind in kinds.items():
        given = getattr(owner, name)
        read = kind.read(where, name, given)
        if read is not given:
            object.__setattr__(owner, name, read)


def is_whole(value: object, least: int, most: int) -> bool:
    """Whether a value is a whole number, of Python's or numpy's, from `least` to `most`; truth values are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and least <= int(value) <= most


def show(value: object) -> str:
    """Return a value for an error, in a line however long it is."""
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return f"an int of {value.bit_length()} bits"
    try:
        text = repr(value.item()) if isinstance(value, (np.integer, np.floating)) else repr(value)
    except ValueError:
        # Python refuses to print ints of some thousand digits.
        return f"a {type(value).__name__} with ints beyond 2**63"
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def _read_number(value: object) -> float:
    """Return a number as Python's; NaN for what is none.

    A whole number stays an int: old checkpoints and plans are recognized by how a number is written.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return math.nan
    try:
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    except OverflowError:
        return math.inf


def _name(name: str, expected: str) -> str:
    return f"{name} as {expected}" if name else expected


def _describe_range(least: int, most: int, value: object) -> str:
    too_large = isinstance(value, (int, np.integer)) and int(value) > most
    return f"from {least} to {most}" if too_large or most < LARGEST_SIZE else f"of at least {least}"
