"""The link between the arena and the memory outside: two rates, and what its transfers cost the computation beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...memory.errors import ConfigError
from ...memory.sizes import parse_size

MOST_CONTENTION = 0.45
"""Both directions at once still leave the computation a tenth of its speed."""
USUAL_CONTENTION = 0.1
"""Where only the rates are told. Measured with oneDNN on 2 cores and a disk of 2 GB/s: 0.03 to 0.14."""


@dataclass(frozen=True, slots=True)
class Link:
    """How fast bytes leave the arena and come back; both may happen at once.

    Attributes:
        out_bytes_per_second: from the arena to the memory outside, beside a computation.
        in_bytes_per_second: back.
        contention: seconds that the computation loses by each second of a transfer beside it, in either direction; 0
            to 0.45.
    """

    out_bytes_per_second: float
    in_bytes_per_second: float
    contention: float = 0.0

    def __post_init__(self) -> None:
        for rate in (self.out_bytes_per_second, self.in_bytes_per_second):
            if not (math.isfinite(rate) and rate > 0):
                raise ConfigError("link", "two rates above 0, in bytes per second", f"{rate}")
        if not 0 <= self.contention <= MOST_CONTENTION:
            raise ConfigError("link", f"a contention from 0 to {MOST_CONTENTION}", f"{self.contention}")

    def out_seconds(self, nbytes: float) -> float:
        """Time that bytes take to leave."""
        return nbytes / self.out_bytes_per_second

    def in_seconds(self, nbytes: float) -> float:
        """Time that bytes take to come back."""
        return nbytes / self.in_bytes_per_second


def parse_link(text: str) -> Link:
    """Read two sizes a second, out and in, as in "600 MB,1.5 GB"; one stands for both; with the usual contention.

    Raises:
        ConfigError: it does not read so; a size that is none is refused as `parse_size` does.
    """
    parts = text.split(",") if isinstance(text, str) else []
    if not 1 <= len(parts) <= 2:
        expected = "a text OUT,IN in bytes per second, such as '600 MB,1.5 GB', or one rate for both"
        raise ConfigError("link", expected, repr(text))
    rates = [float(parse_size(part.strip(), "link")) for part in parts]
    return Link(rates[0], rates[-1], USUAL_CONTENTION)
