"""Sizes as users write them, turned into bytes, bytes turned into text for messages, and bytes rounded up.

Powers of two are KiB, MiB, GiB, TiB; powers of ten are kB (or KB), MB, GB, TB (IEC 80000-13). Whatever could mean two
things is refused rather than guessed: `1 Gb` and `1 gb` may be bits, and `1 G` is 10**9 to one reader and 2**30 to
another, 7 % apart. Nothing here checks whether the machine has that many bytes; `process/available.py` does.
"""

from __future__ import annotations

import re
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from .errors import ConfigError

_UNITS = MappingProxyType(
    {
        "": 1,
        "B": 1,
        "kB": 10**3,
        "KB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "TB": 10**12,
        "kiB": 2**10,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
        "TiB": 2**40,
    }
)
_PRINTED_UNITS = (("KiB", 2**10, 1), ("MiB", 2**20, 1), ("GiB", 2**30, 2), ("TiB", 2**40, 2))
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_EXPECTED = 'a positive number of bytes: an int, or a text such as "400 MiB", "1.5 GB" or "123"'
_LONGEST_TEXT = 64
_LARGEST = 2**63 - 1


def parse_size(value: int | str, where: str = "memory") -> int:
    """Return `value` in bytes: ints are bytes, texts are a decimal number and a unit from B to TiB.

    A fraction of a byte is dropped, so that a budget is never exceeded by rounding.

    Args:
        value: such as `2**30`, `"1 GiB"`, `"400MiB"`, `"1.5 GB"`, `"123"`.
        where: the option concerned, for the error.

    Raises:
        ConfigError: not a size, not positive, not finite, beyond 2**63 - 1, or ambiguous (bits, `G` alone).
    """
    if isinstance(value, str):
        nbytes = _parse_text(value, where)
    elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        nbytes = int(value)
    else:
        shown = f"{value!r}, a {type(value).__name__}"
        raise ConfigError(where, _EXPECTED, shown, _hint_for_float(value) if isinstance(value, float) else "")
    if not 0 < nbytes <= _LARGEST:
        # Python refuses to print ints of some thousand digits.
        huge = not isinstance(value, str) and abs(nbytes) > _LARGEST
        shown = "an int beyond 2**63 - 1" if huge else repr(value)
        hint = "It is at least one byte." if nbytes <= 0 else "No machine has more than 2**63 - 1 bytes."
        raise ConfigError(where, _EXPECTED, shown, hint)
    return nbytes


def align_up(nbytes: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` that is at least `nbytes`."""
    return -(-nbytes // alignment) * alignment


def format_size(nbytes: int) -> str:
    """Return `nbytes` for people, in powers of two: "17 B", "400.0 MiB", "1.00 GiB"; rounded to the last digit."""
    sign = "-" if nbytes < 0 else ""
    magnitude = abs(nbytes)
    if magnitude < 2**10:
        return f"{nbytes} B"
    for unit, factor, digits in _PRINTED_UNITS:
        text = f"{magnitude / factor:.{digits}f}"
        # The rounded number decides: 1 MiB - 1 B is "1.0 MiB", not "1024.0 KiB".
        if float(text) < 1024 or unit == "TiB":
            break
    return f"{sign}{text} {unit}"


def format_size_exact(nbytes: int) -> str:
    """Return `nbytes` both rounded and exact, for messages to copy from: "400.0 MiB (419430400 bytes)"."""
    return f"{format_size(nbytes)} ({nbytes} bytes)"


def _parse_text(text: str, where: str) -> int:
    shown = repr(text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…")
    matched = _SIZE.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if matched is None:
        raise ConfigError(where, _EXPECTED, shown, 'Write digits, at most one ".", and a unit: no sign, no exponent.')
    number, unit = matched.groups()
    if unit not in _UNITS:
        raise ConfigError(where, _EXPECTED, shown, _hint_for_unit(unit))
    return int(Fraction(number) * _UNITS[unit])


def _hint_for_unit(unit: str) -> str:
    known = {name.lower(): name for name in _UNITS}
    lower = unit.lower()
    if lower.endswith(("bit", "bits", "bps")) or (unit.endswith("b") and lower in known):
        candidate = known.get(re.sub(r"b(its?|ps)?$", "b", lower))
        meant = f'; if bytes are meant, write "{candidate}"' if candidate else ""
        return f'"{unit}" reads as bits{meant}.'
    if lower in known:
        return f'Write "{known[lower]}".'
    if len(lower) in (1, 2) and lower + "b" in known:
        prefix = lower[0].upper()
        return f'"{unit}" names no unit: write "{prefix}iB" (powers of two) or "{prefix}B" (powers of ten).'
    return "Units are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB."


def _hint_for_float(value: float) -> str:
    if value > 0 and value.is_integer() and value <= _LARGEST:
        return f"Bytes are whole: write int({value!r}) = {int(value)}, or a text with a unit."
    return 'Bytes are whole: write an int, or a text with a unit such as "1.5 GiB".'
