"""A process that moves bytes through a disk tier.

Arguments: FOLDER TIER_BYTES (MIB_TO_MOVE | forever) (nameless | named | cached).

Both queues of a device are at work: one half of the arena goes out while the other comes back. Prints "moving" once
they are, and "correct" where what came back is what went out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice
from bathyal.memory.tiers.disk import DiskTier

HALF = 4 * 2**20


def without_nameless_files(opening: Callable[..., int]) -> Callable[..., int]:
    """`os.open` of a file system that has no O_TMPFILE."""

    def refuse(path: Path, flags: int, mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return opening(path, flags, mode)

    return refuse


def main(folder: Path, nbytes: int, amount: str, kind: str) -> None:
    """Move and compare."""
    if kind == "named":
        os.open = without_nameless_files(os.open)
    places = min(nbytes // HALF, 128)
    rounds = int(amount) * 2**20 // HALF if amount != "forever" else 2**60
    with (
        DiskTier(folder, nbytes, try_direct=kind != "cached") as tier,
        Arena(2 * HALF) as arena,
        HostDevice(arena) as device,
    ):
        arena.commit()
        for index in range(rounds):
            if index == 2:
                print("moving", flush=True)
            arena.view(0, HALF)[:] = index % places % 251
            device.offload(device.out, 0, HALF, tier, index % places * HALF)
            if index:
                device.fetch(device.inward, tier, (index - 1) % places * HALF, HALF, HALF)
            device.out.synchronize()
            device.inward.synchronize()
            if index and not (arena.view(HALF, HALF) == (index - 1) % places % 251).all():
                sys.exit("wrong bytes")
    print("correct")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
