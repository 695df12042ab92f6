"""What the tests of the CUDA libraries need where there is no GPU: a library of the driver's name."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER = "libcuda.so.1"
PACKAGES = {"cudnn": "nvidia-cudnn-frontend"}


def need_cudnn(folder: Path) -> None:
    """Make cuDNN usable in this process, or skip the test with the reason.

    A driver that is there is taken; else a stub is compiled in `folder` and loaded. Libraries that are linked against
    the driver then find it by its name. It says that there is no device, and stays loaded as long as the process lives.
    """
    for module, package in PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs the package {package}: pip install 'bathyal[cuda13]'")
    try:
        ctypes.CDLL(DRIVER, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("needs a driver, or a C compiler (cc, gcc) to stand in for it")
        stub = folder / DRIVER
        source = Path(__file__).with_name("driver_stub.c")
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", str(stub), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        ctypes.CDLL(str(stub), mode=ctypes.RTLD_GLOBAL)
