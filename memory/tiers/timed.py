"""A wrapper of a tier that counts what passes through it: bytes and seconds in each direction.

It changes nothing that is moved. One thread at a time writes and one reads, as for every tier, so each direction has
counters of its own and needs no lock. The seconds are those in which a transfer runs, including its waits for the disk
or a simulated link, but not its time in a queue. A transfer that fails is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .tier import Tier


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a tier has moved.

    Attributes:
        out_bytes: bytes moved to the tier.
        in_bytes: bytes moved from the tier.
        out_seconds: seconds in which transfers to the tier ran.
        in_seconds: seconds in which transfers from the tier ran.
    """

    out_bytes: int = 0
    in_bytes: int = 0
    out_seconds: float = 0.0
    in_seconds: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes moved in both directions together."""
        return self.out_bytes + self.in_bytes

    @property
    def seconds(self) -> float:
        """Seconds of both directions added: where both run at once, that time counts twice."""
        return self.out_seconds + self.in_seconds

    def since(self, earlier: Traffic) -> Traffic:
        """Return what has moved since `earlier` was read."""
        return Traffic(
            self.out_bytes - earlier.out_bytes,
            self.in_bytes - earlier.in_bytes,
            self.out_seconds - earlier.out_seconds,
            self.in_seconds - earlier.in_seconds,
        )


class CountedTier(Tier, Protocol):
    """A tier that tells what has passed through it."""

    @property
    def traffic(self) -> Traffic:
        """What has moved so far; exact while no transfer is under way."""


class TimedTier:
    """A `Tier` around another tier, with counters.

    Args:
        tier: the one that keeps the bytes; it is closed with this one.
        clock: returns the time in seconds.

    Attributes:
        name: the name of the wrapped tier.
        nbytes: its size.
    """

    def __init__(self, tier: Tier, clock: Callable[[], float] = time.perf_counter) -> None:
        self.name = tier.name
        self.nbytes = tier.nbytes
        self._tier = tier
        self._clock = clock
        self._out_bytes = self._in_bytes = 0
        self._out_seconds = self._in_seconds = 0.0

    @property
    def traffic(self) -> Traffic:
        """What has moved so far; exact while no transfer is under way."""
        return Traffic(self._out_bytes, self._in_bytes, self._out_seconds, self._in_seconds)

    def write(self, address: int, source: npt.NDArray[np.uint8]) -> None:
        """Copy `source` to the bytes from `address`; raises as the tier does."""
        begin = self._clock()
        self._tier.write(address, source)
        self._out_seconds += self._clock() - begin
        self._out_bytes += source.nbytes

    def read(self, address: int, target: npt.NDArray[np.uint8]) -> None:
        """Copy the bytes from `address` into `target`; raises as the tier does."""
        begin = self._clock()
        self._tier.read(address, target)
        self._in_seconds += self._clock() - begin
        self._in_bytes += target.nbytes

    def grow(self, nbytes: int) -> None:
        """Let the tier hold at least `nbytes`; raises as the tier does."""
        self._tier.grow(nbytes)
        self.nbytes = self._tier.nbytes

    def close(self) -> None:
        """Close the tier."""
        self._tier.close()

    def __enter__(self) -> TimedTier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
