"""The link between the arena and the memory outside: two rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..memory.errors import ConfigError
from ..memory.sizes import parse_size


@dataclass(frozen=True, slots=True)
class Link:
    """How fast bytes leave the arena and come back; both may happen at once.

    Attributes:
        out_bytes_per_second: from the arena to the memory outside.
        in_bytes_per_second: back.
    """

    out_bytes_per_second: float
    in_bytes_per_second: float

    def __post_init__(self) -> None:
        for rate in (self.out_bytes_per_second, self.in_bytes_per_second):
            if not (math.isfinite(rate) and rate > 0):
                raise ConfigError("link", "two rates above 0, in bytes per second", f"{rate}")

    def out_seconds(self, nbytes: float) -> float:
        """Time that bytes take to leave."""
        return nbytes / self.out_bytes_per_second

    def in_seconds(self, nbytes: float) -> float:
        """Time that bytes take to come back."""
        return nbytes / self.in_bytes_per_second


def parse_link(text: str) -> Link:
    """Read two sizes a second, out and in, as in "600 MB,1.5 GB"; one stands for both.

    Raises:
        ConfigError: it does not read so; a size that is none is refused as `parse_size` does.
    """
    parts = text.split(",") if isinstance(text, str) else []
    if not 1 <= len(parts) <= 2:
        expected = "a text OUT,IN in bytes per second, such as '600 MB,1.5 GB', or one rate for both"
        raise ConfigError("link", expected, repr(text))
    rates = [float(parse_size(part.strip(), "link")) for part in parts]
    return Link(rates[0], rates[-1])
