"""The CUDA kernels through the compiler that the backend uses, for an H200's architecture, which needs no GPU."""

import ctypes
import importlib.metadata
import re

import pytest

from bathyal.engine.backends.cuda.kernel_programs import source_text
from tests.support.cuda_on_cpu import cuda_on_cpu

pytestmark = pytest.mark.cuda

MOST_REGISTERS = 64
"""Half of a multiprocessor's threads are resident with as many; these kernels wait for memory, not for arithmetic."""
ROUNDED_AS_ON_THE_CPU = (
    "add",
    "avg_pool",
    "batch_norm",
    "bias_add",
    "dropout",
    "global_avg_pool_backward",
    "sgd",
    "sigmoid_backward",
    "tanh_backward",
)
"""Beginnings of the names of kernels that must not contract a product and a sum of float32."""


class Nvrtc:
    """The runtime compiler of an installed wheel."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))

    def compile(self, source, *options):
        """The compiled program and the compiler's log."""
        library, program = self.library, ctypes.c_void_p()
        assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
        given = [o.encode() for o in options]
        failed = library.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        log = self._text(program, "ProgramLog")
        assert not failed, log
        return program, log

    def ptx(self, source, *options):
        return self._text(self.compile(source, *options)[0], "PTX")

    def _text(self, program, what):
        size = ctypes.c_size_t()
        assert getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value)
        assert getattr(self.library, f"nvrtcGet{what}")(program, text) == 0
        return text.value.decode()


@pytest.fixture(scope="module")
def nvrtc():
    for wheel in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found = [f for f in files if re.fullmatch(r"libnvrtc\.so\.\d+", f.name)]
        if found:
            return Nvrtc(found[0].locate())
    pytest.skip("the wheel nvidia-cuda-nvrtc, of the extras cuda12 and cuda13, is not installed")


def test_no_kernel_spills_registers(nvrtc):
    _, log = nvrtc.compile(source_text(), "--gpu-architecture=sm_90", "--std=c++17", "--ptxas-options=-v")
    assert "warning" not in log
    registers = {}
    for part in log.split("Compiling entry function ")[1:]:
        name = re.match(r"'(\w+)' for 'sm_90'", part).group(1)
        stack, stores, loads = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes", part
        ).groups()
        assert (stack, stores, loads) == ("0", "0", "0"), f"{name} needs local memory"
        registers[name] = int(re.search(r"Used (\d+) registers", part).group(1))
    print("\n".join(f"{count:4} registers  {name}" for name, count in sorted(registers.items())))
    assert set(registers) == set(cuda_on_cpu().kernels)
    assert max(registers.values()) <= MOST_REGISTERS, registers


@pytest.fixture(scope="module")
def bodies(nvrtc):
    """The instructions of each kernel, as text for the assembler."""
    ptx = nvrtc.ptx(source_text(), "--gpu-architecture=compute_90", "--std=c++17")
    found = {part.split("(", 1)[0].strip(): part for part in ptx.split(".entry ")[1:]}
    assert set(found) == set(cuda_on_cpu().kernels)
    return found


def test_packs_are_moved_by_one_instruction(bodies):
    flat = ("add", "copy_flat", "dropout_plain", "sgd", "sgd_momentum", "sigmoid", "tanh_forward")
    packed = {name: (32, int(name[-1])) for name in bodies if name.endswith("_4") and "bf16" not in name}
    packed |= {name: (16, int(name[-1])) for name in bodies if name.endswith(("_bf16_4", "_bf16_8"))}
    packed |= dict.fromkeys(flat, (32, 4))
    packed |= {f"{name}_bf16": (16, 8) for name in flat if "sgd" not in name}
    packed |= {"copy_flat_to_bf16": (16, 8), "copy_flat_from_bf16": (16, 8)}
    assert len(packed) >= 45
    for name, (bits, pack) in packed.items():
        for direction in ("ld", "st"):
            vectors = re.findall(rf"{direction}\.global(?:\.nc)?\.v(\d)\.[a-z](\d+)", bodies[name])
            assert bits * pack in {int(lanes) * int(width) for lanes, width in vectors}, f"{name}: {vectors}"


def test_no_sum_that_must_be_rounded_as_on_the_cpu_is_contracted(bodies):
    contracted = {name for name, body in bodies.items() if "fma.rn.f32" in body or "fma.rn.ftz.f32" in body}
    assert "lrn" in contracted, "the compiler no longer contracts, or its text changed"
    assert not {name for name in contracted if name.startswith(ROUNDED_AS_ON_THE_CPU)}
