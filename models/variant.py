"""What all bundled networks take: how many classes, and their form, as a paper printed it or as it is built today."""

from __future__ import annotations

from typing import Literal, get_args

from ..memory.arguments import LARGEST_SIZE, Whole, show
from ..memory.errors import ConfigError

Variant = Literal["today", "paper"]

VARIANTS: tuple[Variant, ...] = get_args(Variant)


def check_variant(where: str, variant: str) -> Variant:
    """Return `variant`.

    Raises:
        ConfigError: it is neither "today" nor "paper".
    """
    for known in VARIANTS:
        if variant == known:
            return known
    raise ConfigError(where, f"variant {' or '.join(map(repr, VARIANTS))}", show(variant))


def read_classes(where: str, classes: object) -> int:
    """Return the number of classes.

    Raises:
        ConfigError: no whole number from 1 to `LARGEST_SIZE`.
    """
    hint = "There are no weights to load: a network starts from its own first values." if classes is True else ""
    return Whole(1, LARGEST_SIZE, hint).read(where, "classes", classes)
