"""What the GPU's library hands to CuPy, cuBLAS and cuDNN, with stand-ins that compute on the host.

The stand-ins take what the vendors' functions take: CuPy's kernels their grid, block, pointers and scalars, `sgemm` its
fifteen arguments by Fortran's rules. So whole steps must come out with the bits of the other library of the host.
"""

import sys
import types

import numpy as np
import pytest

from bathyal.engine.backends.backend import Kernel
from bathyal.engine.backends.cuda import gpu_library
from bathyal.engine.backends.cuda.backend import CudaBackend
from bathyal.engine.backends.cuda.gpu_library import GpuLibrary, require_math
from bathyal.engine.backends.cuda.kernel_program import KernelCall, KernelProgram, Pointer
from bathyal.engine.backends.cuda.parts import Product
from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice, HostMachine
from bathyal.memory.errors import ConfigError, DeviceError
from bathyal.scheduler.planner import make_plan
from tests.support.cuda_library import CpuLibrary, at
from tests.support.cuda_on_cpu import cuda_on_cpu
from tests.support.fake_cuda import FakeCuda
from tests.support.network_runs import PLENTY, least_plan, problem, run

STREAM = 77


class Cublas:
    """Stands for `cupy_backends.cuda.libs.cublas`, and for the library's own function that it lacks."""

    CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_DEFAULT_MATH = 0, 1, 0

    def __init__(self):
        self.streams, self.modes, self.workspaces, self.alive, self.status = {}, {}, [], set(), 0
        self.cublasSetWorkspace_v2 = lambda *given: self._workspace(*given)

    def create(self):
        handle = 500 + len(self.streams)
        self.alive.add(handle)
        return handle

    def destroy(self, handle):
        self.alive.remove(handle)

    def setStream(self, handle, stream):  # noqa: N802 - its name
        self.streams[handle] = stream

    def setMathMode(self, handle, mode):  # noqa: N802
        self.modes[handle] = mode

    def _workspace(self, handle, pointer, nbytes):
        assert handle in self.alive
        self.workspaces.append((pointer, nbytes))
        return self.status

    def sgemm(self, handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        assert handle in self.alive
        assert (at(alpha, (1,), np.float32)[0], at(beta, (1,), np.float32)[0]) == (1, 0)

        def matrix(pointer, rows, columns, leading, transposed):
            """In Fortran's order: `leading` elements from one column to the next."""
            shape = (rows, leading) if transposed else (columns, leading)
            found = at(pointer, shape, np.float32).astype(np.float64)
            return found[:, :columns] if transposed else found[:, :rows].T

        made = matrix(a, m, k, lda, transa) @ matrix(b, k, n, ldb, transb)
        at(c, (n, ldc), np.float32)[:, :m] = made.T


@pytest.fixture
def stand_ins(monkeypatch):
    """CuPy, cuBLAS and cuDNN; what was launched, as (kernel, grid, block, stream)."""
    launched, kernels, cublas = [], cuda_on_cpu(), Cublas()

    def get_function(name):
        letters = kernels.kernels[name].letters
        count = letters.count("p")

        def call(grid, block, args, stream):
            launched.append((name, grid, block, stream.ptr))
            assert all(type(p) is int for p in args[:count])
            operands = tuple(Pointer(n) for n in range(count))
            kernels.run_at(
                KernelProgram((KernelCall(name, *grid, *block, operands, tuple(args[count:])),)), args[:count]
            )

        return call

    cupy = types.ModuleType("cupy")
    cupy.__version__ = "14"
    cupy.RawModule = lambda code, options, backend: types.SimpleNamespace(get_function=get_function)
    cupy.cuda = types.SimpleNamespace(ExternalStream=lambda ptr: types.SimpleNamespace(ptr=ptr))
    libraries = types.ModuleType("cupy_backends.cuda.libs")
    libraries.cublas = cublas
    for name, module in (
        ("cupy", cupy),
        ("cupy_backends", types.ModuleType("cupy_backends")),
        ("cupy_backends.cuda", types.ModuleType("cupy_backends.cuda")),
        ("cupy_backends.cuda.libs", libraries),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(gpu_library, "_cublas", lambda: cublas)
    opened = set()
    cudnn = types.SimpleNamespace(
        version=lambda: "cuDNN",
        open_handle=lambda stream: opened.add(stream) or ("handle", stream),
        close_handle=lambda handle: opened.remove(handle[1]),
    )
    monkeypatch.setattr(gpu_library, "CudnnLibrary", lambda: cudnn)
    return types.SimpleNamespace(launched=launched, cublas=cublas, opened=opened)


class WithHostGraphs(GpuLibrary):
    """cuDNN's part by numpy."""

    product_workspace_bytes = CpuLibrary.product_workspace_bytes

    def __init__(self, math="float32"):
        super().__init__(FakeCuda(), math)
        self._host = CpuLibrary()

    def graph_kernels(self, request):
        return self._host.graph_kernels(request)

    def graph(self, request, kernel, repeat, stream):
        return self._host.graph(request, kernel, repeat, stream)


def trained(case, plan, library, math="float32"):
    with HostDevice(Arena(plan.peak_bytes)) as device:
        device.arena.stream = STREAM
        return run(case, plan, CudaBackend(library, HostMachine(), math), device, None).bits


@pytest.mark.parametrize("math", ["float32", "bf16"])
@pytest.mark.parametrize("seed", [1, 3])
def test_a_step_comes_out_with_the_bits_of_the_other_library(stand_ins, seed, math):
    case = problem(seed, CudaBackend(CpuLibrary(), HostMachine(), math))
    for plan in (make_plan(case, "liveness", PLENTY), least_plan(case, "chain")):
        library = WithHostGraphs(math)
        assert trained(case, plan, library, math) == trained(case, plan, CpuLibrary(), math)
        assert {stream for *_, stream in stand_ins.launched} == {STREAM}
        assert set(stand_ins.cublas.streams.values()) == {STREAM}
        assert set(stand_ins.cublas.modes.values()) == {0 if math == "float32" else 3}
        assert {nbytes for _, nbytes in stand_ins.cublas.workspaces} == {library.product_workspace_bytes}
        library.close()
        library.close()
        assert not stand_ins.cublas.alive


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_products_by_fortrans_rules(stand_ins, transposed):
    rng = np.random.default_rng(0)
    m, n, k = 5, 3, 7
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
    # Memory in Fortran's order holds the matrix, or the transposed one.
    held = [np.asfortranarray(x.T if t else x) for x, t in zip((a, b), transposed, strict=True)]
    c = np.full((m, n), np.nan, np.float32, order="F")
    library = GpuLibrary(FakeCuda())
    launch = library.product(Product(m, n, k, transposed, (2, 0, 1)), STREAM)
    launch([held[1].ctypes.data, c.ctypes.data, held[0].ctypes.data], 4096)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-6)
    assert stand_ins.cublas.workspaces == [(4096, library.product_workspace_bytes)]
    stand_ins.cublas.status = 7
    with pytest.raises(DeviceError, match="status 7"):
        launch([held[1].ctypes.data, c.ctypes.data, held[0].ctypes.data], 4096)


def test_a_graphs_workspace_is_rounded_up_within_what_was_asked_for(stand_ins):
    given = []
    operation = types.SimpleNamespace(
        kernels=(Kernel("large", 1000), Kernel("none", 0)),
        execute=lambda kernel, pointers, workspace, handle, repeat: given.append((kernel, workspace, handle, repeat)),
    )
    library = GpuLibrary(FakeCuda())
    library._graphs = types.SimpleNamespace(operation=lambda request: operation)
    large, none = library.graph_kernels(None)
    assert none.workspace_bytes == 0
    launch = library.graph(None, 1, True, STREAM)
    for workspace in range(0, 1024, 64):
        launch([], workspace)
        _, rounded, *_ = given[-1]
        assert rounded % 256 == 0
        assert workspace <= rounded <= rounded + 1000 <= workspace + large.workspace_bytes
    assert {(kernel, handle, repeat) for kernel, _, handle, repeat in given} == {(1, ("handle", STREAM), True)}
    assert stand_ins.opened == {STREAM}
    library.close()
    assert not stand_ins.opened


def test_math_and_version(stand_ins):
    assert "tf32" in GpuLibrary(FakeCuda(), "tf32").version()
    assert "a GPU of the host's memory" in GpuLibrary(FakeCuda()).version()
    with pytest.raises(ConfigError, match="math"):
        GpuLibrary(FakeCuda(), "fp8")


@pytest.mark.parametrize("math", ["bf16", "tf32"])
def test_a_gpu_before_ampere_computes_in_float32_alone(math):
    runtime = FakeCuda()
    require_math(runtime, math)
    runtime.major = 7
    require_math(runtime, "float32")
    with pytest.raises(ConfigError, match=rf"^math: .*generation 8 or later, got '{math}' on a GPU.* of generation 7"):
        require_math(runtime, math)
