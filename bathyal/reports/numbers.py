"""Numbers as JSON can hold them."""

from __future__ import annotations

import math


def finite_or_none(value: float) -> float | None:
    """Return the value; None for NaN and infinity, which JSON does not know."""
    return value if math.isfinite(value) else None
