"""The most memory that this process has had resident, interpreter and libraries included."""

from __future__ import annotations

from pathlib import Path


def resident_peak_bytes() -> int | None:
    """Return the most bytes this process ever had resident, by the kernel's count (VmHWM), or None without `/proc`."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
