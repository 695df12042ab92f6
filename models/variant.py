"""The two forms of a network: as a paper printed it, and as it is built today."""

from __future__ import annotations

from typing import Literal, get_args

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
    raise ConfigError(where, f"variant {' or '.join(map(repr, VARIANTS))}", repr(variant))
