"""A tier in memory outside the arena, as fast as a copy or slowed down to a given link.

On the host itself it spares no memory: it stands for memory behind a link of known bandwidth. The link is simulated by
sleeping: one transfer at a time in each direction, the directions independent of each other. Its memory is resident
before the first transfer, or refused, as the arena's is. It does not check for races.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np
import numpy.typing as npt

from bathyal.memory.arena import Arena
from bathyal.memory.errors import ConfigError
from bathyal.memory.process.available import free_memory
from bathyal.memory.tiers.tier import check_range


class HostTier:
    """A `Tier` of `nbytes` of resident memory.

    Attributes:
        name: what plans and errors call it.
        nbytes: its size.
        link: bandwidth out (`write`) and inward (`read`) in bytes per second, or None for a plain copy.
    """

    def __init__(
        self,
        nbytes: int,
        *,
        link: tuple[float, float] | None = None,
        name: str = "host",
        free: Callable[[], int] = free_memory,
    ) -> None:
        """Take the memory.

        Args:
            nbytes: how much.
            link: bandwidth out and inward in bytes per second; None for a plain copy.
            name: what plans and errors call the tier.
            free: tells the bytes still free, as for `Arena.commit`.

        Raises:
            BudgetError: fewer bytes are free, or the system refuses.
            ConfigError: a bandwidth is not positive.
        """
        if link is not None and not min(link) > 0:
            raise ConfigError(f"tier {name!r}", "a link of more than 0 bytes per second in each direction", str(link))
        self.name = name
        self.nbytes = nbytes
        self.link = link
        self._free = free
        self._memory = self._allocate(nbytes)
        self._out = threading.Lock()
        self._inward = threading.Lock()

    def _allocate(self, nbytes: int) -> Arena:
        memory = Arena(nbytes, f"tier {self.name!r}")
        try:
            memory.commit(free=self._free)
        except BaseException:
            memory.close()
            raise
        return memory

    def grow(self, nbytes: int) -> None:
        """Hold at least `nbytes`; raises BudgetError where old and new do not fit beside each other."""
        if nbytes > self.nbytes:
            with self._out, self._inward:
                larger = self._allocate(nbytes)
                larger.memory[: self.nbytes] = self._memory.memory
                self._memory.close()
                self._memory, self.nbytes = larger, nbytes

    def write(self, address: int, source: npt.NDArray[np.uint8]) -> None:
        """Copy `source` to the bytes from `address`; raises PlanError outside, or once closed."""
        with self._out:
            _copy(self._view(address, source.nbytes), source, None if self.link is None else self.link[0])

    def read(self, address: int, target: npt.NDArray[np.uint8]) -> None:
        """Copy the bytes from `address` into `target`; raises PlanError outside, or once closed."""
        with self._inward:
            _copy(target, self._view(address, target.nbytes), None if self.link is None else self.link[1])

    def close(self) -> None:
        """Wait for transfers under way and give the memory back; closing twice is allowed."""
        with self._out, self._inward:
            self._memory.close()

    def _view(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        check_range(self, address, nbytes)
        return self._memory.view(address, nbytes)

    def __enter__(self) -> HostTier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _copy(target: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8], bytes_per_second: float | None) -> None:
    """Copy, and return no earlier than a link of that bandwidth would."""
    end = time.monotonic() + (0.0 if bytes_per_second is None else source.nbytes / bytes_per_second)
    np.copyto(target, source)
    rest = end - time.monotonic()
    if rest > 0:
        time.sleep(rest)
