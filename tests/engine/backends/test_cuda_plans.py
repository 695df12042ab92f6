"""What cuDNN offers an H200 for every operation of the bundled networks, found out without a GPU.

The device is described by text, and where there is no driver a stub takes its place, so every plan here is built as on
the device, with its exact workspace, but none is run. All signatures of all networks in all their variants are built, at
batch 32: convolutions in each precision, and batch norms and ReLUs, whose plans are compiled, in float32, and for
ResNet-50 in bfloat16 too.
"""

import subprocess
import sys
from dataclasses import replace

import pytest

from bathyal.engine.backends.cuda.cudnn_library import CudnnLibrary, described_device
from bathyal.engine.backends.cuda.graphs import CONVOLUTIONS, MOST_PLANS, RECIPES, Graphs
from bathyal.engine.backends.cuda.request import Operand, Request
from bathyal.layers.graph import TensorSpec
from bathyal.memory.errors import DeviceError
from bathyal.models.registry import MODELS
from cuda_driver import DRIVER, need_cudnn
from model_requests import placed, requests, signature, step_graph

pytestmark = pytest.mark.cuda

MOST_WORKSPACE_BYTES = 2**30
ADDED = {"batch_norm_training": "batch_norm_add_relu", "batch_norm_backward": "batch_norm_add_relu_backward"}
OFTEN = ("conv2d", "batch_norm_relu", "relu_backward")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    need_cudnn(tmp_path_factory.mktemp("driver"))
    return CudnnLibrary(described_device("h200"))


@pytest.fixture(scope="module")
def bundled():
    """Every distinct operation of every variant of every network."""
    found = {}
    for model, entry in MODELS.items():
        for variant in entry.variants:
            found |= requests(step_graph(model, variant), RECIPES)
    return list(found.values())


def with_addition(request):
    """A batch norm without a ReLU, as a residual block ends with it, together with the addition and the ReLU behind."""
    x, mask = request.inputs[0], placed(TensorSpec(request.inputs[0].spec.shape, "uint8"))
    if request.kind == "batch_norm_training":
        inputs, outputs = (x, x, *request.inputs[1:]), (*request.outputs, mask)
    else:
        inputs, outputs = (*request.inputs, mask), (x, *request.outputs)
    return Request(ADDED[request.kind], inputs, outputs, request.attrs)


def in_bfloat16(request):
    """Images and weights in bfloat16, a convolution's weight gradient with them; statistics as they are."""

    def narrow(operand):
        spec = operand.spec
        wide = len(spec.shape) == 4 and spec.dtype == "float32"
        return replace(operand, spec=TensorSpec(spec.shape, "bfloat16")) if wide else operand

    return replace(request, inputs=tuple(map(narrow, request.inputs)), outputs=tuple(map(narrow, request.outputs)))


def check(operation, request):
    """What a planner relies on."""
    kernels = operation.kernels
    assert 1 <= len(kernels) <= MOST_PLANS, request
    assert len({k.name for k in kernels}) == len(kernels), request
    assert all(type(k.workspace_bytes) is int and k.workspace_bytes >= 0 for k in kernels), request
    assert min(k.workspace_bytes for k in kernels) <= MOST_WORKSPACE_BYTES, request


@pytest.mark.parametrize("math", ["float32", "tf32"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions(library, bundled, kind, math):
    """One plan at least, and the least workspace of all plans that cuDNN can build without a compiler."""
    graphs = Graphs(library, math)
    asked = [r for r in bundled if r.kind == kind]
    assert len(asked) > 50
    for request in asked:
        check(graphs.operation(request), request)
        plans = library.plans(
            lambda draft, request=request: RECIPES[kind](draft, request), math == "float32", ("A", "FALLBACK"), False
        )
        least = min(plan.workspace_bytes for plan in plans)
        assert min(k.workspace_bytes for k in graphs.operation(request).kernels) == least


def test_convolutions_without_workspace(library, bundled):
    """A planner can always fall back to a convolution that needs nothing but its operands."""
    for math in ("float32", "tf32"):
        graphs = Graphs(library, math)
        for request in bundled:
            if request.kind in CONVOLUTIONS:
                assert 0 in [k.workspace_bytes for k in graphs.operation(request).kernels], (math, request)


@pytest.mark.parametrize("kind", [kind for kind in RECIPES if kind not in CONVOLUTIONS and kind not in ADDED.values()])
def test_what_is_compiled(library, bundled, kind):
    graphs = Graphs(library)
    asked = [r for r in bundled if r.kind == kind]
    assert len(asked) > 10
    for request in asked:
        check(graphs.operation(request), request)


@pytest.mark.parametrize("kind", ADDED)
def test_batch_norms_that_end_residual_blocks(library, kind):
    graphs = Graphs(library)
    asked = requests(step_graph("resnet50"), [kind]).values()
    for request in asked:
        check(graphs.operation(with_addition(request)), request)


@pytest.mark.parametrize("kind", RECIPES)
def test_bfloat16(library, kind):
    graphs = Graphs(library, "bf16")
    source = next((plain for plain, added in ADDED.items() if added == kind), kind)
    asked = requests(step_graph("resnet50"), [source]).values()
    for request in asked:
        narrow = in_bfloat16(with_addition(request) if source != kind else request)
        check(graphs.operation(narrow), narrow)


def test_plans_are_the_same_in_another_session(library, bundled):
    for kind in OFTEN:
        request = next(r for r in bundled if r.kind == kind)
        first, second = (Graphs(library).operation(request).kernels for _ in range(2))
        assert first == second


def test_what_cudnn_cannot_do_is_named(library):
    image = placed(TensorSpec((4, 6, 8, 8), "float32"))
    weight = placed(TensorSpec((8, 5, 3, 3), "float32"))
    attrs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    made = placed(TensorSpec((4, 8, 6, 6), "float32"))
    asked = Request("conv2d", (image, weight), (made,), attrs)
    with pytest.raises(DeviceError, match=r"conv2d of float32\[4, 6, 8, 8\]nhwc.*cuDNN 9\."):
        _ = Graphs(library).operation(asked).kernels


def test_a_missing_driver_is_named(library):
    """In a process of its own, as the stub is part of this one."""
    code = f"""
import ctypes, sys
try:
    ctypes.CDLL({DRIVER!r})
except OSError:
    from bathyal.engine.backends.cuda.cudnn_library import CudnnLibrary, described_device
    CudnnLibrary(described_device("h200"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        pytest.skip("there is a driver")
    assert "DeviceError: cuda: expected a driver (libcuda.so.1)" in done.stderr


def test_rows_have_a_relu(library):
    row = Operand(TensorSpec((32, 4096), "float32"))
    asked = Request("relu", (row,), (row,), {})
    assert Graphs(library).operation(asked).kernels[0].workspace_bytes == 0


def test_signatures_are_distinct(bundled):
    assert len({signature(r) for r in bundled}) == len(bundled)
