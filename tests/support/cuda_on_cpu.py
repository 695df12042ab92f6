"""Runs programs of CUDA kernels on a CPU: the same sources, compiled by g++ behind `cuda_on_cpu/cuda_on_cpu.h`.

How to call a kernel is read off its signature by the compiler, so nothing is written twice; a program whose arguments
differ from the signature in number or type is refused. The library is compiled once and kept in the folder for
temporary files, under a name made from everything that it depends on.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bathyal.engine.backends.cuda.kernel_program import KernelCall, KernelProgram
from bathyal.engine.backends.cuda.kernel_programs import FOLDER, SOURCES

HERE = Path(__file__).parent / "cuda_on_cpu"
FAULTY = (HERE / "faulty.cu",)
"""Kernels with faults, to try the stand-in itself."""
ALL = tuple(FOLDER / name for name in SOURCES)
KERNEL = re.compile(r'extern "C" (void|cuda_on_cpu::cooperative) (\w+)\(')
LETTERS = {np.int32: "i", np.int64: "l", np.float32: "f", np.float64: "d"}
MESSAGE_BYTES = 512

BINDINGS = """
struct Kernel { const char* name; bool cooperates; const char* letters; cuda_on_cpu::Invoke invoke; };
static const Kernel kernels[] = {
%s
};
extern "C" const char* kernel_letters(int k) { return kernels[k].letters; }
extern "C" int run_kernel(int k, unsigned blocks, unsigned threads, int falling, void** values, char* message, int
size) {
    cuda_on_cpu::launch(kernels[k].invoke, kernels[k].cooperates, blocks, threads, falling, values);
    snprintf(message, size, "%%s", cuda_on_cpu::fault.c_str());
    return cuda_on_cpu::fault.empty() ? 0 : 1;
}
"""


class KernelError(Exception):
    """A kernel did what is not allowed on a GPU."""


@dataclass(frozen=True)
class Bound:
    """A kernel of a compiled library.

    Attributes:
        number: its place in the library.
        cooperates: whether its threads meet.
        letters: one for each parameter: p pointer, i int32, l int64, f float32, d float64.
    """

    number: int
    cooperates: bool
    letters: str


class CudaOnCpu:
    """Compiled kernels; one launch at a time, from any thread."""

    def __init__(self, library: ctypes.CDLL, kernels: dict[str, Bound]) -> None:
        self._library = library
        self._lock = threading.Lock()
        self.kernels = kernels

    def run(
        self,
        program: KernelProgram,
        memory: npt.NDArray[np.uint8],
        addresses: Sequence[int],
        *,
        falling: bool = False,
        whole_grid: bool = False,
    ) -> None:
        """Run all launches of a program.

        Args:
            program: what to run.
            memory: the device's memory, beginning at a multiple of 64 bytes.
            addresses: of inputs, outputs and, where the program has one, the workspace: bytes from where memory begins.
            falling: let blocks and threads run from the last to the first.
            whole_grid: launch all blocks and threads that the program asks for, where fewer give the same bits faster.

        Raises:
            KernelError: threads part at a barrier, or arguments do not fit the kernel.
        """
        base = memory.ctypes.data
        assert base % 64 == 0, "kernels count on aligned tensors"
        self.run_at(program, [base + a for a in addresses], falling=falling, whole_grid=whole_grid)

    def run_at(
        self, program: KernelProgram, pointers: Sequence[int], *, falling: bool = False, whole_grid: bool = False
    ) -> None:
        """The same with machine addresses."""
        for call in program.calls:
            self._launch(call, pointers, falling, whole_grid)

    def _launch(self, call: KernelCall, places: Sequence[int], falling: bool, whole_grid: bool) -> None:
        bound = self.kernels[call.function]
        letters = "p" * len(call.operands) + "".join(LETTERS[type(s)] for s in call.scalars)
        if letters != bound.letters:
            raise KernelError(f"{call.function} takes {bound.letters}, not {letters}")
        values: list[Any] = [np.array(places[p.operand] + p.offset, np.uint64) for p in call.operands]
        values += [np.array(s) for s in call.scalars]
        pointers = (ctypes.c_void_p * len(values))(*(v.ctypes.data for v in values))
        blocks = call.blocks if whole_grid else 1
        threads = call.threads if whole_grid or bound.cooperates else 1
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        with self._lock:
            failed = self._library.run_kernel(bound.number, blocks, threads, falling, pointers, message, MESSAGE_BYTES)
        if failed:
            raise KernelError(f"{call.function}: {message.value.decode()}")


@lru_cache(maxsize=4)
def cuda_on_cpu(sources: tuple[Path, ...] = ALL) -> CudaOnCpu:
    """The kernels of some sources; skips the test where they cannot be compiled."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++, which compiles the CUDA kernels for the CPU, is not installed", allow_module_level=True)
    options = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-w"]
    if "fma" in _processor_flags():
        options += ["-mfma", "-ffp-contract=fast"]
    options += ["-I", str(FOLDER), "-I", str(HERE), "-include", "cuda_on_cpu.h"]
    unit = "".join(f'#include "{path}"\n' for path in sources)
    digest = hashlib.sha256("\0".join([*options, unit, BINDINGS, _version(compiler), *_texts(sources)]).encode())
    folder = Path(tempfile.gettempdir()) / f"bathyal-cuda-on-cpu-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    stem = folder / digest.hexdigest()[:24]
    listing, library = stem.with_suffix(".txt"), stem.with_suffix(".so")
    if not (listing.exists() and library.exists()):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch)
            (made / "unit.cpp").write_text(unit)
            text = _compile([*options, "-E", str(made / "unit.cpp")])
            found = KERNEL.findall(text)
            rows = [
                f'    {{"{name}", {"false" if kind == "void" else "true"}, cuda_on_cpu::Binding<{name}>::letters(), '
                f"cuda_on_cpu::Binding<{name}>::invoke}},"
                for kind, name in found
            ]
            (made / "bound.cpp").write_text(unit + BINDINGS % "\n".join(rows))
            _compile([*options, "-o", str(made / "kernels.so"), str(made / "bound.cpp")])
            (made / "kernels.txt").write_text("".join(f"{name} {kind}\n" for kind, name in found))
            # Processes that compile at the same time make the same files.
            (made / "kernels.so").replace(library)
            (made / "kernels.txt").replace(listing)
    loaded = ctypes.CDLL(str(library))
    loaded.kernel_letters.restype = ctypes.c_char_p
    kernels = {}
    for number, line in enumerate(listing.read_text().splitlines()):
        name, kind = line.split()
        kernels[name] = Bound(number, kind != "void", loaded.kernel_letters(number).decode())
    return CudaOnCpu(loaded, kernels)


def _compile(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout


def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


def _texts(sources: Sequence[Path]) -> list[str]:
    return [path.read_text() for path in (*sources, FOLDER / "prelude.cuh", HERE / "cuda_on_cpu.h")]


def _processor_flags() -> list[str]:
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    found = re.search(r"^flags\s*:(.*)$", text, re.M)
    return found.group(1).split() if found else []
