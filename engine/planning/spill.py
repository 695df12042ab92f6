"""Where what leaves the arena goes, and how fast: one file in the spill folder for all programs of a session.

The rates are measured once per disk and backend and kept like the kernels' seconds; they are those of either direction
beside the network's own operations: in a step what leaves does so in the forward pass and comes back in the backward
pass. Measured with them is what the computation loses by it. Not checked: whether the disk is as fast later, or beside
other programs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ...memory.devices.device import Device
from ...memory.process.available import free_memory
from ...memory.sizes import format_size
from ...memory.tiers.disk import DiskTier
from ...memory.tiers.spill_folder import check_spill_folder, default_spill_folder
from ...memory.tiers.tier import TIER_ALIGNMENT, Tier
from ...memory.tiers.timed import CountedTier, TimedTier, Traffic
from ...scheduler.plan.link import MOST_CONTENTION, Link
from ..settings import Settings
from .background_load import BackgroundLoad
from .timing_cache import read_timing_cache

logger = logging.getLogger(__name__)

MEASURED_BYTES = 64 * 2**20
"""Room for measuring, in the arena and on the disk, where there is so much."""
LEAST_BYTES = 2 * TIER_ALIGNMENT
"""Room that measuring needs."""


class Spill:
    """The place outside the arena of one session.

    Args:
        settings: folder, size and rates, where the user gives them.
        cache: folder of measured rates; None keeps none.
        make_tier: gives a place of so many bytes; by default the device's own, or a file in the spill folder.
    """

    def __init__(self, settings: Settings, cache: Path | None, make_tier: Callable[[int], Tier] | None = None) -> None:
        self._settings = settings
        self._cache = cache
        self._make_tier = make_tier
        self._tier: CountedTier | None = None
        self._link: Link | None = None

    def find_link(self, device: Device, load: BackgroundLoad) -> Link:
        """Return how fast bytes leave and come back: as the user says, or measured when first asked for.

        Args:
            device: the contents of its arena may be overwritten by the load.
            load: what computes beside the transfers that are timed.

        Raises:
            BudgetError: there is no room on the disk, or the memory that the arena promises is not free.
            ConfigError: the folder will not do.
            DeviceError: the disk failed.
        """
        if self._link is None:
            given = self._settings.link
            self._link = self._measure_link(device, load) if given is None else given
        return self._link

    def open_tier(self, nbytes: int, device: Device) -> Tier | None:
        """Return the place for what leaves `device`, with room for `nbytes`; None where nothing has to leave.

        Raises:
            BudgetError, ConfigError, DeviceError: as `find_link` does.
        """
        if self._tier is None and nbytes:
            self._tier = self._make_counted_tier(nbytes, device)
        elif self._tier is not None:
            self._tier.grow(nbytes)
        return self._tier

    @property
    def current_tier(self) -> Tier | None:
        """The place for what leaves; None where nothing has left yet."""
        return self._tier

    def find_limit(self, device: Device) -> int | None:
        """Return the bytes that may be outside at a time: as the user says, or half of the free memory for a GPU.

        A GPU pins the host's memory for what leaves it; elsewhere the disk is the limit, and None is returned.
        """
        given = self._settings.spill_size
        return free_memory() // 2 if given is None and device.own_tier is not None else given

    @property
    def traffic(self) -> Traffic:
        """What has left and come back since the place was opened; exact while nothing is under way."""
        return Traffic() if self._tier is None else self._tier.traffic

    def close(self) -> None:
        """Give the place back; what moves bytes has ended before."""
        if self._tier is not None:
            self._tier.close()
            self._tier = None

    def _make_counted_tier(self, nbytes: int, device: Device) -> CountedTier:
        if self._make_tier is not None:
            return TimedTier(self._make_tier(nbytes))
        return TimedTier(self._make_disk_tier(nbytes)) if device.own_tier is None else device.own_tier(nbytes)

    def _make_disk_tier(self, nbytes: int) -> Tier:
        return DiskTier(self._find_folder(), nbytes, limit=self._settings.spill_size)

    def _find_folder(self) -> Path:
        given = self._settings.spill_dir
        if given is None:
            return default_spill_folder()
        check_spill_folder(given)
        return given

    def _measure_link(self, device: Device, load: BackgroundLoad) -> Link:
        """Measure the link between the device's arena and its own memory outside, or the folder's disk."""
        known = read_timing_cache(self._cache, f"link/{load.environment}")
        place = device.name if device.own_tier else str(self._find_folder().stat().st_dev)
        out, inward, lost = (known.find(f"{place} {what}") for what in ("out", "in", "lost"))
        if out and inward and lost is not None:
            return Link(1 / out, 1 / inward, min(lost, MOST_CONTENTION))
        arena, limit = device.arena, self._settings.spill_size
        if arena.nbytes < LEAST_BYTES:
            return Link(1e9, 1e9)  # nothing can be planned in so little: the planner says how much it takes
        room = min(MEASURED_BYTES, arena.nbytes // 2, MEASURED_BYTES if limit is None else limit)
        room = max(room // TIER_ALIGNMENT * TIER_ALIGNMENT, LEAST_BYTES)  # where less may be written, the tier says so
        arena.commit(room)
        with (device.own_tier or self._make_disk_tier)(room) as tier:
            found = device.bandwidth(tier, load.start(arena, room))
        logger.info(
            "%s: %s/s out, %s/s in; both at once %s/s and %s/s; beside operations %s/s and %s/s, which lose %.0f %%",
            place,
            *(format_size(int(rate)) for rate in (found.out, found.inward, found.out_together, found.inward_together)),
            *(format_size(int(rate)) for rate in (found.out_beside, found.inward_beside)),
            100 * found.contention,
        )
        known.add(f"{place} out", 1 / found.out_beside)
        known.add(f"{place} in", 1 / found.inward_beside)
        known.add(f"{place} lost", found.contention)
        known.save()
        return Link(found.out_beside, found.inward_beside, min(found.contention, MOST_CONTENTION))
