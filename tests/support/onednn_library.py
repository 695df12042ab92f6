"""The oneDNN backend for tests, which are skipped where its library is missing."""

from __future__ import annotations

import pytest

from bathyal.engine.backends.onednn import OneDnnBackend
from bathyal.memory.errors import DeviceError


def onednn_backend() -> OneDnnBackend:
    """A backend; skips the test, or the module that calls it, where the library cannot be loaded."""
    try:
        return OneDnnBackend()
    except DeviceError as error:
        pytest.skip(f"oneDNN cannot be loaded: {error}", allow_module_level=True)
