"""How much memory this process has and has had resident, interpreter and libraries included."""

from __future__ import annotations

from pathlib import Path


def resident_peak_bytes() -> int | None:
    """Return the most bytes this process ever had resident, by the kernel's count (VmHWM), or None without `/proc`."""
    return _read_status("VmHWM:")


def private_bytes() -> int | None:
    """Return the resident bytes that are of no file, by the kernel's count (RssAnon), or None where it does not say."""
    return _read_status("RssAnon:")


def _read_status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)
