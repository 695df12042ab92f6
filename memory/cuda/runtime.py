"""The CUDA runtime by the calls of `cupy.cuda.runtime`, with handles and pointers as ints.

CuPy is looked for when a device is asked for, not when this module is imported: the rest of the package needs no CuPy.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from typing import Any

from ..errors import DeviceError

INSTALL = (
    "Install the libraries, for CUDA 13 with: pip install 'bathyal[cuda13]', "
    "for CUDA 12 with: pip install 'bathyal[cuda12]'."
)


DRIVER = "libcuda.so.1"

CudaRuntime = Any
"""A module like `cupy.cuda.runtime`, or one that stands for it in tests: CUDA's calls by CUDA's names. Each of them
raises the module's `CUDARuntimeError` where CUDA returns an error."""


def cuda_runtime() -> CudaRuntime:
    """Return the CUDA runtime of this machine.

    Raises:
        DeviceError: CuPy is not installed, or finds no driver or no GPU; the error says how to get what is missing.
    """
    if "cupy" not in sys.modules and importlib.util.find_spec("cupy") is not None:
        _require_driver()
    try:
        import cupy
    except ImportError as error:
        raise DeviceError("device 'cuda'", "the package CuPy", f"{error}", INSTALL) from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        hint = "Install NVIDIA's driver, or take the device 'onednn'."
        raise DeviceError("device 'cuda'", "an NVIDIA GPU with its driver", str(error), hint) from error
    if not count:
        raise DeviceError("device 'cuda'", "an NVIDIA GPU", "none", "Take the device 'onednn'.")
    return runtime


def _require_driver() -> None:
    """Look for the driver before CuPy is imported, which takes a second and 100 MiB that are lost without one."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError as error:
        hint = "Install NVIDIA's driver, or take the device 'onednn'."
        raise DeviceError("device 'cuda'", f"NVIDIA's driver ({DRIVER})", str(error), hint) from error
