"""How waiting threads of OpenMP behave: they sleep.

They spin by default, which on a busy machine turns a call of 66 microseconds into one of 12 milliseconds. The variable
is read when the library loads, so it must be set before.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

VARIABLE = "OMP_WAIT_POLICY"
MAPS = Path("/proc/self/maps")


def wait_passively(maps: Path = MAPS) -> None:
    """Set the policy unless the user has; warn where the library was loaded first and so cannot read it."""
    if VARIABLE in os.environ:
        return
    os.environ[VARIABLE] = "passive"
    if maps.exists() and "libgomp" in maps.read_text():
        logger.warning(
            "%s=passive comes too late, as OpenMP is loaded already: on a busy machine steps may be much slower. "
            "Set it in the environment, or import bathyal first.",
            VARIABLE,
        )
