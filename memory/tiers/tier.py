"""The protocol of a tier: a range of bytes outside the arena that tensors are copied to and from.

A tier decides nothing and allocates nothing: its addresses come from a plan, as the arena's do. The package has two: a
file (`disk.py`) and, for a GPU, pinned memory of the host (`cuda/pinned.py`). A transfer blocks its caller. The `out`
and `inward` queues of a device have a thread each, so a tier is written and read at the same time, but by one thread in
each direction. A tier does not order a read after the write of the same bytes: an event does, and
`devices/simulated.py` checks that it is there.

Tensors start at multiples of `TIER_ALIGNMENT`, whatever their length, so that a file system can move them without a
copy in between (O_DIRECT).
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import PlanError
from ..sizes import align_up

TIER_ALIGNMENT = 4096


class Tier(Protocol):
    """A fixed number of bytes outside the arena.

    Attributes:
        name: what plans, labels and errors call it; the tiers of one device have different names.
        nbytes: how many bytes it holds.
    """

    name: str
    nbytes: int

    def write(self, address: int, source: npt.NDArray[np.uint8]) -> None:
        """Copy `source`, contiguous, to the bytes from `address`; returns once all of them have arrived.

        Raises:
            PlanError: the bytes lie outside, `address` is no multiple of 4096, or the tier is closed.
            DeviceError: the bytes could not be moved; those of the range are then undefined, all others intact.
        """

    def read(self, address: int, target: npt.NDArray[np.uint8]) -> None:
        """Copy the bytes from `address` into `target`, contiguous; returns once all of them have arrived.

        Raises:
            PlanError: as for `write`.
            DeviceError: the bytes could not be moved; `target` is then undefined.
        """

    def grow(self, nbytes: int) -> None:
        """Hold at least `nbytes` from now on and keep what is there. No transfer may be under way.

        Raises:
            BudgetError: there is no room for so many bytes.
        """

    def close(self) -> None:
        """Wait for transfers under way and give the bytes back; closing twice is allowed."""

    def __enter__(self) -> Tier: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def check_range(tier: Tier, address: int, nbytes: int) -> None:
    """Raise PlanError unless `nbytes` from `address` lie inside `tier` and start on a multiple of 4096."""
    if address < 0 or nbytes < 0 or address + nbytes > tier.nbytes:
        raise PlanError(f"tier {tier.name!r}", f"a range inside [0, {tier.nbytes})", f"[{address}, {address + nbytes})")
    if address % TIER_ALIGNMENT:
        raise PlanError(f"tier {tier.name!r}", f"an address that is a multiple of {TIER_ALIGNMENT}", str(address))


def align_to_tier(nbytes: int) -> int:
    """Return `nbytes` rounded up to a multiple of `TIER_ALIGNMENT`: the bytes that a tensor takes in a tier."""
    return align_up(nbytes, TIER_ALIGNMENT)
