"""What cuDNN offers an H200 for every operation of the bundled networks, found out without a GPU.

The device is described by text, and where there is no driver a stub takes its place, so every plan here is built as on
the device, with its exact workspace, but none is run. All signatures of all networks in all their variants are built,
at
batch 32: convolutions in each precision, and batch norms, whose plans are compiled, in float32, and for ResNet-50 in
bfloat16 too. Planners then use them at the budgets of a GPU.
"""

import subprocess
import sys
from dataclasses import replace

import pytest

from bathyal.engine.backends.cuda.backend import CudaBackend
from bathyal.engine.backends.cuda.cudnn_library import CudnnLibrary, read_device_description
from bathyal.engine.backends.cuda.graphs import CONVOLUTIONS, CUDNN_GRAPHS, MOST_PLANS, Graphs
from bathyal.engine.backends.cuda.op_request import OpRequest
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.layers import SGD, forward_graph, training_graph
from bathyal.layers.graph import TensorSpec
from bathyal.memory.devices.host import HostMachine
from bathyal.memory.errors import DeviceError
from bathyal.models.registry import MODELS, build_model
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.plan.verify import verify
from bathyal.scheduler.planner import StrategyPlanner, make_plan
from tests.support.cuda_driver import DRIVER, need_cudnn
from tests.support.cuda_library import CpuLibrary
from tests.support.model_requests import channels_last_operand, distinct_requests, signature, step_graph

pytestmark = pytest.mark.cuda

MOST_WORKSPACE_BYTES = 2**30
OFTEN = ("conv2d", "batch_norm_relu", "batch_norm_backward")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    need_cudnn(tmp_path_factory.mktemp("driver"))
    return CudnnLibrary(read_device_description("h200"))


@pytest.fixture(scope="module")
def bundled():
    """Every distinct operation of every variant of every network."""
    found = {}
    for model, entry in MODELS.items():
        for variant in entry.variants:
            found |= distinct_requests(step_graph(model, variant), CUDNN_GRAPHS)
    return list(found.values())


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
            lambda graph, request=request: CUDNN_GRAPHS[kind](graph, request),
            math == "float32",
            ("A", "FALLBACK"),
            False,
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


@pytest.mark.parametrize("kind", [kind for kind in CUDNN_GRAPHS if kind not in CONVOLUTIONS])
def test_what_is_compiled(library, bundled, kind):
    graphs = Graphs(library)
    asked = [r for r in bundled if r.kind == kind]
    assert len(asked) > 10
    for request in asked:
        check(graphs.operation(request), request)


@pytest.mark.parametrize("kind", CUDNN_GRAPHS)
def test_bfloat16(library, kind):
    graphs = Graphs(library, "bf16")
    for request in distinct_requests(step_graph("resnet50"), [kind]).values():
        narrow = in_bfloat16(request)
        check(graphs.operation(narrow), narrow)


def test_plans_are_the_same_in_another_session(library, bundled):
    for kind in OFTEN:
        request = next(r for r in bundled if r.kind == kind)
        first, second = (Graphs(library).operation(request).kernels for _ in range(2))
        assert first == second


def test_what_cudnn_cannot_do_is_named(library):
    image = channels_last_operand(TensorSpec((4, 6, 8, 8), "float32"))
    weight = channels_last_operand(TensorSpec((8, 5, 3, 3), "float32"))
    attrs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    made = channels_last_operand(TensorSpec((4, 8, 6, 6), "float32"))
    asked = OpRequest("conv2d", (image, weight), (made,), attrs)
    with pytest.raises(DeviceError, match=r"conv2d of float32\[4, 6, 8, 8\]nhwc.*cuDNN 9\."):
        _ = Graphs(library).operation(asked).kernels


def test_a_missing_driver_is_named(library):
    """In a process of its own, as the stub is part of this one."""
    code = f"""
import ctypes, sys
try:
    ctypes.CDLL({DRIVER!r})
except OSError:
    from bathyal.engine.backends.cuda.cudnn_library import CudnnLibrary, read_device_description
    CudnnLibrary(read_device_description("h200"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        pytest.skip("there is a driver")
    assert "DeviceError: cuda: expected a driver (libcuda.so.1)" in done.stderr


def test_signatures_are_distinct(bundled):
    assert len({signature(r) for r in bundled}) == len(bundled)


class PlanningLibrary(CpuLibrary):
    """Has cuDNN's plans of the device described, and runs nothing."""

    def __init__(self, graphs):
        self._graphs = graphs

    def graph_kernels(self, request):
        return self._graphs.operation(request).kernels


@pytest.mark.parametrize(
    ("model", "batch", "budget", "math"),
    [
        ("resnet50", 64, 12, "float32"),
        ("resnet152", 64, 80, "float32"),
        ("vgg16", 64, 12, "float32"),
        ("resnet50", 64, 12, "bf16"),
        ("alexnet", 64, 12, "bf16"),
    ],
)
def test_planners_choose_among_them(library, model, batch, budget, math):
    """Each convolution takes the fastest plan whose exact workspace fits beside what is live."""
    backend = CudaBackend(PlanningLibrary(Graphs(library, math)), HostMachine(), math)
    shape = (batch, 3, 224, 224)
    graph = lower(training_graph(forward_graph(build_model(model), shape), SGD(0.1, momentum=0.9)), backend)
    costs = estimate(graph, backend)
    rows = tuple(tuple(replace(k, seconds=k.seconds * (1 + n)) for n, k in enumerate(row)) for row in costs.kernels)
    problem = Problem(graph, replace(costs, kernels=rows), Kernels.FIT, lay_out_state(graph))
    found = {}
    for nbytes in (budget * 2**30, StrategyPlanner(problem, "chain").least_bytes):
        plan = make_plan(problem, "chain", nbytes)
        verify(plan, graph, problem.costs, problem.state)
        chosen = {step.op: step.kernel for step in plan.runs if graph.ops[step.op].kind in CONVOLUTIONS}
        found[nbytes] = [rows[op][kernel] for op, kernel in chosen.items()]
        assert plan.peak_bytes <= nbytes
    roomy, tight = (sum(k.workspace_bytes for k in kernels) for kernels in found.values())
    # In 16 bits the fastest plans need next to none.
    assert roomy > tight or math == "bf16"
    assert any(k.workspace_bytes for k in next(iter(found.values())))
