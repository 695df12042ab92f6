"""The link between the arena and the memory outside: two rates, and how much transfers slow the computation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...memory.errors import ConfigError
from ...memory.sizes import parse_size

MOST_CONTENTION = 0.45
"""With the most contention, transfers in both directions at once leave the computation a tenth of its speed."""
USUAL_CONTENTION = 0.1
"""The contention of a link of which only the rates are given.

Measured with oneDNN on 2 cores and a disk of 2 GB/s: 0.03 to 0.14.
"""


@dataclass(frozen=True, slots=True)
class Link:
    """How fast bytes leave the arena and come back; both may happen at once.

    Attributes:
        out_bytes_per_second: rate from the arena to the memory outside, beside a computation.
        in_bytes_per_second: rate from the memory outside to the arena, beside a computation.
        contention: seconds that the computation loses by each second of a transfer beside it, in either direction; 0
            to `MOST_CONTENTION`.

    Raises:
        ConfigError: a rate that is not above 0, or a contention out of range.
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
        """Seconds that bytes take to leave the arena."""
        return nbytes / self.out_bytes_per_second

    def in_seconds(self, nbytes: float) -> float:
        """Seconds that bytes take to come back into the arena."""
        return nbytes / self.in_bytes_per_second


def parse_link(text: str) -> Link:
    """Read a link from its rates out and in, as in "600 MB,1.5 GB", in bytes per second; one rate stands for both.

    The contention is `USUAL_CONTENTION`.

    Raises:
        ConfigError: the text is not one rate or two, or `parse_size` refuses a rate.
    """
    parts = text.split(",") if isinstance(text, str) else []
    if not 1 <= len(parts) <= 2:
        expected = "a text OUT,IN in bytes per second, such as '600 MB,1.5 GB', or one rate for both"
        raise ConfigError("link", expected, repr(text))
    rates = [float(parse_size(part.strip(), "link")) for part in parts]
    return Link(rates[0], rates[-1], USUAL_CONTENTION)
