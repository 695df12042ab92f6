"""How much memory this process has had resident at most: the kernel's count, libraries and interpreter included."""

from __future__ import annotations

from pathlib import Path


def resident_peak_bytes() -> int | None:
    """The most memory that this process ever had resident, by the kernel's count (VmHWM); None where it says nothing."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
