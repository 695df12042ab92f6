"""The threads that compute for a session on the host: how many there are, and what its numpy makes of tiny numbers."""

from __future__ import annotations

from threadpoolctl import threadpool_limits

from .subnormals import flush_in_blas


def prepare_compute_threads(count: int) -> threadpool_limits:
    """Limit the threads of OpenMP and BLAS to `count` until the limits that are returned are restored."""
    limits = threadpool_limits(count)
    flush_in_blas()
    return limits
