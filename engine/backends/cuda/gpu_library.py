"""Kernels on a GPU: the backend's own through CuPy's compiler, products through cuBLAS, all else through cuDNN.

Everything is made when it is first asked for: the kernels are compiled once per machine (CuPy keeps them on disk), a
handle of each library once per stream. cuBLAS gets its workspace with every call, from the plan; nothing else is
allocated by a launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ....memory.cuda.device import CudaMachine, device_name
from ....memory.cuda.runtime import CudaRuntime
from ....memory.errors import ConfigError, DeviceError
from ....memory.sizes import align_up
from ....scheduler.plan.steps import ALIGNMENT
from ..backend import Kernel
from .backend import CudaBackend
from .cudnn_library import INSTALL, CudnnLibrary
from .graphs import ALIGNMENT as WORKSPACE_ALIGNMENT
from .graphs import Graphs
from .kernel_program import KernelCall, KernelProgram
from .kernel_programs import source_text
from .library import Launcher
from .op_request import OpRequest
from .parts import Product

OPTIONS = ("-std=c++17",)
AMPERE = 8
"""The generation of GPUs, the first number of their compute capability, whose tensor cores first took bfloat16."""
TF32_MATH = 3
"""cuBLAS' CUBLAS_TF32_TENSOR_OP_MATH; 0, its default, multiplies float32 as such."""
CUBLAS = ("libcublas.so.13", "libcublas.so.12")


class GpuLibrary:
    """A `Library` of the current GPU.

    Args:
        runtime: CUDA's, which tells the device's name.
        math: "float32"; "tf32", which lets convolutions and products round their factors to 10 bits of mantissa; or
            "bf16", the same with images in 16 bits.

    Raises:
        ConfigError: there is no such math.
        DeviceError: a package or a library is missing; says which and how to get it.
    """

    product_workspace_bytes = 4 * 2**20

    def __init__(self, runtime: CudaRuntime, math: str = "float32") -> None:
        self._cudnn = CudnnLibrary()
        self._graphs = Graphs(self._cudnn, math)
        self._math = math
        self._device = device_name(runtime)
        self._cudnn_handles: dict[int, Any] = {}
        self._cublas_handles: dict[int, int] = {}
        self._functions: dict[str, Any] = {}
        self._streams: dict[int, Any] = {}

    def graph_kernels(self, request: OpRequest) -> tuple[Kernel, ...]:
        """List the plans of cuDNN for a request; raises DeviceError where it has no engine.

        A workspace has room to be rounded up to what cuDNN wants, as plans align less.
        """
        return tuple(
            Kernel(k.name, k.workspace_bytes and k.workspace_bytes + WORKSPACE_ALIGNMENT - ALIGNMENT)
            for k in self._graphs.operation(request).kernels
        )

    def graph(self, request: OpRequest, kernel: int, repeat: bool, stream: int) -> Launcher:
        """Make what runs a plan of cuDNN."""
        if stream not in self._cudnn_handles:
            self._cudnn_handles[stream] = self._cudnn.open_handle(stream)
        handle, execute = self._cudnn_handles[stream], self._graphs.operation(request).execute

        def launch(pointers: Sequence[int], workspace: int) -> None:
            rounded = align_up(workspace, WORKSPACE_ALIGNMENT)
            execute(kernel, pointers, rounded, handle, repeat)

        return launch

    def product(self, product: Product, stream: int) -> Launcher:
        """Make what multiplies matrices; it adds up in the same order each time."""
        from cupy_backends.cuda.libs import cublas

        if stream not in self._cublas_handles:
            made = self._cublas_handles[stream] = cublas.create()
            cublas.setStream(made, stream)
            cublas.setMathMode(made, cublas.CUBLAS_DEFAULT_MATH if self._math == "float32" else TF32_MATH)
        handle, set_workspace, nbytes = self._cublas_handles[stream], self._set_workspace, self.product_workspace_bytes
        numbers = np.array([1, 0], np.float32)
        one, zero = numbers.ctypes.data, numbers.ctypes.data + 4
        m, n, k = product.m, product.n, product.k
        ways = tuple(cublas.CUBLAS_OP_T if t else cublas.CUBLAS_OP_N for t in product.transposed)
        lda, ldb = (k if product.transposed[0] else m), (n if product.transposed[1] else k)
        left, right, made_at = product.operands

        def launch(pointers: Sequence[int], workspace: int, held: Any = numbers) -> None:
            set_workspace(handle, workspace, nbytes)
            a, b, c = pointers[left], pointers[right], pointers[made_at]
            cublas.sgemm(handle, *ways, m, n, k, one, a, lda, b, ldb, zero, c, m)

        return launch

    @cached_property
    def _set_workspace(self) -> Callable[[int, int, int], None]:
        """The function `cublasSetWorkspace_v2`, which CuPy does not bind."""
        function = _cublas().cublasSetWorkspace_v2
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

        def run(handle: int, workspace: int, nbytes: int) -> None:
            status = function(handle, workspace, nbytes)
            if status:
                raise DeviceError("cuBLAS", "a workspace to be taken", f"status {status}")

        return run

    def program(self, program: KernelProgram, operands: Sequence[int], stream: int) -> Launcher:
        """Make what runs kernels of the backend's own."""
        calls = [self._call(call, operands, stream) for call in program.calls]

        def launch(pointers: Sequence[int], workspace: int) -> None:
            for call in calls:
                call(pointers, workspace)

        return launch

    def _call(self, call: KernelCall, operands: Sequence[int], stream: int) -> Launcher:
        function, stream_object = self._function(call.function), self._stream(stream)
        places = [(operands[p.operand] if p.operand < len(operands) else -1, p.offset) for p in call.operands]
        grid, block, scalars = (call.blocks,), (call.threads,), call.scalars

        def launch(pointers: Sequence[int], workspace: int) -> None:
            found = [(workspace if place < 0 else pointers[place]) + offset for place, offset in places]
            function(grid, block, (*found, *scalars), stream=stream_object)

        return launch

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            self._functions[name] = self._module.get_function(name)
        return self._functions[name]

    @cached_property
    def _module(self) -> Any:
        import cupy

        return cupy.RawModule(code=source_text(), options=OPTIONS, backend="nvrtc")

    def _stream(self, stream: int) -> Any:
        import cupy

        if stream not in self._streams:
            self._streams[stream] = cupy.cuda.ExternalStream(stream)
        return self._streams[stream]

    def close(self) -> None:
        """Give the libraries' handles back; nothing may be under way."""
        if self._cublas_handles:
            from cupy_backends.cuda.libs import cublas

            while self._cublas_handles:
                cublas.destroy(self._cublas_handles.popitem()[1])
        while self._cudnn_handles:
            self._cudnn.close_handle(self._cudnn_handles.popitem()[1])

    def version(self) -> str:
        """Name CuPy, cuDNN, the device and the math."""
        import cupy

        return f"CuPy {cupy.__version__}; {self._cudnn.version()}; {self._device}; {self._math}"


def _cublas() -> ctypes.CDLL:
    """Find the library of cuBLAS that CuPy has loaded."""
    for name in CUBLAS:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError("cuda", f"the library {' or '.join(CUBLAS)}", "none", INSTALL)


def require_math(runtime: CudaRuntime, math: str) -> None:
    """Refuse math that the current GPU does not compute with: only later ones multiply bfloat16 and tf32.

    Raises:
        ConfigError: says which generation the GPU is of.
    """
    major = int(runtime.getDeviceProperties(0)["major"])
    if math != "float32" and major < AMPERE:
        found = f"{math!r} on {device_name(runtime)} of generation {major}"
        raise ConfigError("math", f"'float32', or a GPU of generation {AMPERE} or later", found)


def cuda_backend(math: str = "float32", graphs: bool = True) -> CudaBackend:
    """Make the backend of this machine's GPU.

    Args:
        math: as for `GpuLibrary`.
        graphs: whether a step is captured into a CUDA graph.

    Raises:
        ConfigError: there is no such math, or the GPU does not compute with it.
        DeviceError: a package, the driver or the GPU is missing; says which and how to get it.
    """
    machine = CudaMachine(graphs=graphs)
    require_math(machine.runtime, math)
    return CudaBackend(GpuLibrary(machine.runtime, math), machine, math)
