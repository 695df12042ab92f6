"""Graphs, choice of plans and addresses, with a stand-in for cuDNN's package that writes down what it is asked."""

import itertools
import math
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bathyal.engine.backends.cuda.cudnn_library import CudnnLibrary, EnginePlan, read_device_description
from bathyal.engine.backends.cuda.graphs import (
    ALIGNMENT,
    CUDNN_GRAPHS,
    LEADING_PLANS,
    MATH,
    MOST_PLANS,
    Graphs,
    choose,
)
from bathyal.engine.backends.cuda.op_request import OpRequest
from bathyal.layers.graph import TensorSpec
from bathyal.memory.errors import ConfigError, DeviceError
from tests.support.fake_cudnn import RANKED, FakeCudnn, FakeTensor
from tests.support.model_requests import channels_last_operand

N, C, H, W = 4, 6, 10, 9
IMAGE = (N, C, H, W)
GEOMETRY = {"stride": (2, 1), "padding": (0, 3), "dilation": (1, 1), "groups": 1}


def graphs(math="float32", **options):
    fake = FakeCudnn(**options)
    return fake, Graphs(CudnnLibrary("{}", fake), math)


def image(*shape, dtype="float32"):
    return channels_last_operand(TensorSpec(shape, dtype))


VECTOR, X, MASK = image(C), image(*IMAGE), image(*IMAGE, dtype="uint8")
REQUESTS = {
    "batch_norm_training": ((X, VECTOR, VECTOR), (X, VECTOR, VECTOR)),
    "batch_norm_relu": ((X, VECTOR, VECTOR), (X, VECTOR, VECTOR, MASK)),
    "batch_norm_backward": ((X, X, VECTOR, VECTOR, VECTOR), (X, VECTOR, VECTOR)),
    "batch_norm_relu_backward": ((X, X, VECTOR, VECTOR, VECTOR, MASK), (X, VECTOR, VECTOR)),
}


def request(kind, groups=1, bias=False, kernel=(3, 5)):
    """A request of a kind on small images."""
    if kind in REQUESTS:
        return OpRequest(kind, *REQUESTS[kind], {"eps": 1e-3, "momentum": 0.1})
    x, weight = X, image(8, C // groups, *kernel)
    y = image(N, 8, (H - kernel[0]) // 2 + 1, W + 6 - kernel[1] + 1)
    vector = (image(8),) if bias else ()
    inputs, outputs = {
        "conv2d": ((x, weight, *vector), (y,)),
        "conv2d_backward_data": ((y, weight), (x,)),
        "conv2d_backward_weights": ((x, y), (weight, *vector)),
    }[kind]
    return OpRequest(kind, inputs, outputs, GEOMETRY | {"groups": groups})


def channels_last(*shape):
    _, c, h, w = shape
    return list(shape), [c * h * w, 1, w * c, c]


def numbers(arguments):
    return {name: t.uid for name, t in arguments.items() if isinstance(t, FakeTensor)}


class TestGraphs:
    @pytest.mark.parametrize(
        ("kind", "operation", "inputs"),
        [
            ("conv2d", "conv_fprop", {"image": 1, "weight": 2}),
            ("conv2d_backward_data", "conv_dgrad", {"loss": 1, "filter": 2}),
            ("conv2d_backward_weights", "conv_wgrad", {"image": 1, "loss": 2}),
        ],
    )
    @pytest.mark.parametrize("groups", [1, 2])
    def test_convolutions_are_channels_last_with_the_geometry_of_the_operation(self, kind, operation, inputs, groups):
        fake, made = graphs()
        asked = request(kind, groups)
        _ = made.operation(asked).kernels
        (name, arguments), *others = fake.graphs[0].operations
        assert (name, numbers(arguments), others) == (operation, inputs, [])
        assert (arguments["padding"], arguments["stride"], arguments["dilation"]) == ([0, 3], [2, 1], [1, 1])
        tensors = [*fake.graphs[0].inputs.values(), fake.graphs[0].outputs[3]]
        for tensor, operand in zip(tensors, (*asked.inputs, *asked.outputs), strict=True):
            assert (tensor.dim, tensor.stride) == channels_last(*operand.spec.shape)

    def test_bias_is_added_and_spread_over_images_and_pixels(self):
        fake, made = graphs()
        _ = made.operation(request("conv2d", bias=True)).kernels
        _, (name, arguments) = fake.graphs[0].operations
        assert (name, arguments["b"].dim, arguments["b"].stride) == ("add", [1, 8, 1, 1], [8, 1, 8, 8])
        assert arguments["b"].uid == 3 and list(fake.graphs[0].outputs) == [4]

    def test_the_gradient_of_a_bias_is_not_asked_for(self):
        fake, made = graphs()
        _ = made.operation(request("conv2d_backward_weights", bias=True)).kernels
        assert list(fake.graphs[0].outputs) == [3]

    @pytest.mark.parametrize("kind", REQUESTS)
    def test_every_operand_is_a_tensor_of_the_graph(self, kind):
        fake, made = graphs()
        asked = request(kind)
        _ = made.operation(asked).kernels
        graph = fake.graphs[0]
        inputs = {n: t for n, t in graph.inputs.items() if not graph.is_scalar(n)}
        given = len(asked.inputs)
        assert set(inputs) == set(range(1, given + 1))
        outputs = {n: t for n, t in graph.outputs.items() if n <= given + len(asked.outputs)}
        assert set(outputs) == {given + 1 + i for i in range(len(asked.outputs))}
        for number, tensor in {**inputs, **outputs}.items():
            spec = (*asked.inputs, *asked.outputs)[number - 1].spec
            expected = {"uint8": "BOOLEAN", "float32": "FLOAT"}[spec.dtype]
            assert (math.prod(tensor.dim), tensor.data_type) == (math.prod(spec.shape), expected)

    def test_the_mask_is_of_what_the_relu_made(self):
        fake, made = graphs()
        _ = made.operation(request("batch_norm_relu")).kernels
        operations = dict(fake.graphs[0].operations)
        assert operations["cmp_gt"]["input"].uid == 4
        assert fake.graphs[0].outputs[7].data_type == "BOOLEAN"

    def test_the_masked_gradient_reaches_batch_norm(self):
        fake, made = graphs()
        _ = made.operation(request("batch_norm_relu_backward")).kernels
        operations = dict(fake.graphs[0].operations)
        assert numbers(operations["mul"]) == {"a": 2, "b": 6}
        assert operations["batchnorm_backward"]["grad"] is not fake.graphs[0].inputs[2]
        assert set(fake.graphs[0].outputs) == {7, 8, 9}

    def test_bfloat16_images_and_masked_gradients_but_float32_statistics(self):
        fake, made = graphs("bf16")
        half = image(*IMAGE, dtype="bfloat16")
        inputs = tuple(half if o == X else o for o in REQUESTS["batch_norm_relu_backward"][0])
        _ = made.operation(OpRequest("batch_norm_relu_backward", inputs, (half, VECTOR, VECTOR), {"eps": 1e-5})).kernels
        graph = fake.graphs[0]
        assert [graph.inputs[n].data_type for n in range(1, 7)] == ["BFLOAT16"] * 2 + ["FLOAT"] * 3 + ["BOOLEAN"]
        assert dict(graph.operations)["batchnorm_backward"]["grad"].data_type == "BFLOAT16"
        assert [graph.outputs[n].data_type for n in (7, 8, 9)] == ["BFLOAT16", "FLOAT", "FLOAT"]
        assert graph.options["compute_data_type"] == graph.options["intermediate_data_type"] == "FLOAT"


class TestPlans:
    def test_ranked_plans_come_first_and_fallbacks_by_workspace(self):
        _, made = graphs()
        kernels = made.operation(request("conv2d")).kernels
        assert [(k.name, k.workspace_bytes) for k in kernels] == [*RANKED["A"], ("eng0", 0)]

    def test_without_a_ranking_the_fallback_that_needs_least_is_first(self):
        _, made = graphs(ranked=RANKED | {"A": [("eng3", None)]})
        assert [k.name for k in made.operation(request("conv2d")).kernels] == ["eng0", "eng1"]

    @pytest.mark.parametrize(("math", "strict"), [("float32", True), ("tf32", False), ("bf16", False)])
    def test_tensor_cores_are_for_convolutions_that_allow_them(self, math, strict):
        fake, made = graphs(math)
        for kind in ("conv2d", "batch_norm_backward", "batch_norm_training"):
            _ = made.operation(request(kind)).kernels
            barred = fake.graphs[-1].barred
            assert ("TENSOR_CORE" in barred) == (strict and kind == "conv2d")
            assert ("RUNTIME_COMPILATION" in barred) == (kind == "conv2d")
            assert "NONDETERMINISTIC" in barred

    @pytest.mark.parametrize("kind", REQUESTS)
    def test_what_has_to_be_compiled_is_built_once(self, kind):
        fake, made = graphs(ranked=RANKED | {"A": [("eng4", None), ("eng5", 0), ("eng6", 0)]})
        operation = made.operation(request(kind))
        assert not fake.graphs
        assert [k.name for k in operation.kernels] == [k.name for k in operation.kernels] == ["eng5"]
        assert [g.built for g in fake.graphs] == [[0, 1]]

    def test_equal_requests_share_an_operation(self):
        _, made = graphs()
        assert made.operation(request("conv2d")) is made.operation(request("conv2d"))
        assert made.operation(request("conv2d")) is not made.operation(request("conv2d", groups=2))

    def test_device_is_the_one_described(self):
        fake, made = graphs()
        _ = made.operation(request("batch_norm_backward")).kernels
        assert fake.graphs[0].options["device_property"] == ("properties", "{}")
        assert "handle" not in fake.graphs[0].options

    @given(st.lists(st.integers(0, 20), min_size=1, max_size=60))
    def test_choice_keeps_the_first_and_the_least(self, sizes):
        plans = [EnginePlan(f"eng{i}", size, None, i) for i, size in enumerate(sizes)]
        chosen = choose(iter(plans))
        assert chosen[: len(sizes[:LEADING_PLANS])] == tuple(plans[:LEADING_PLANS])
        assert min(p.workspace_bytes for p in chosen) == min(sizes)
        assert len(chosen) <= MOST_PLANS
        later = [p.workspace_bytes for p in chosen[LEADING_PLANS:]]
        assert later == sorted(set(later), reverse=True)

    def test_no_more_plans_are_built_than_can_matter(self):
        fake, made = graphs(ranked={"A": [(f"eng{i}", 0) for i in range(40)], "FALLBACK": []})
        _ = made.operation(request("conv2d")).kernels
        assert [g.built for g in fake.graphs] == [list(range(LEADING_PLANS))]

    def test_a_plan_is_listed_once(self):
        plans = [EnginePlan("eng1", 8, None, 0), EnginePlan("eng1", 0, None, 1), EnginePlan("eng2", 4, None, 2)]
        assert [p.index for p in choose(plans)] == [0, 2]


class TestExecution:
    def test_a_convolution_gets_its_operands_and_the_workspace(self):
        fake, made = graphs()
        operation = made.operation(request("conv2d", bias=True))
        operation.execute(1, [16, 32, 48, 64], 4096, "handle")
        assert fake.graphs[0].runs == [({1: 16, 2: 32, 3: 48, 4: 64}, 4096, 1, "handle")]

    @pytest.mark.parametrize("kind", ["batch_norm_training", "batch_norm_relu"])
    def test_a_repeated_batch_norm_leaves_the_statistics_alone(self, kind):
        fake, made = graphs()
        operation = made.operation(request(kind))
        given, outputs = (len(operands) for operands in REQUESTS[kind])
        pointers = [2**20 * (i + 1) for i in range(given + outputs)]
        workspace, nbytes = 2**12, operation.kernels[0].workspace_bytes
        operation.execute(0, pointers, workspace, None)
        operation.execute(0, pointers, workspace, None, repeat=True)
        (first, *_), (second, *_) = fake.graphs[0].runs
        statistics = {given + 2, given + 3}
        assert {n for n in first if first[n] != second[n]} == statistics
        assert all(first[n] == pointers[n - 1] for n in range(1, given + outputs + 1))
        plan = RANKED["A"][0][1]
        for pack in (first, second):
            scratch = sorted(a for n, a in pack.items() if not fake.graphs[0].is_scalar(n) and a < 2**20)
            assert len(scratch) == (2 if pack is first else 4)
            assert all(a % ALIGNMENT == 0 for a in scratch)
            assert scratch[0] >= workspace + plan and scratch[-1] + 4 * C <= workspace + nbytes
            assert all(b - a >= 4 * C for a, b in itertools.pairwise(scratch))

    def test_numbers_are_read_from_the_host(self):
        fake, made = graphs()
        made.operation(request("batch_norm_training")).execute(0, [16] * 6, 0, None)
        graph = fake.graphs[0]
        arguments = dict(graph.operations)["batchnorm"]
        pack = graph.runs[0][0]
        assert pack[arguments["epsilon"].uid] == pytest.approx(1e-3)
        assert pack[arguments["momentum"].uid] == 0


class TestErrors:
    def test_a_missing_package_says_how_to_get_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "cudnn", None)
        with pytest.raises(DeviceError, match=r"nvidia-cudnn-frontend.*pip install 'bathyal\[cuda13\]'"):
            CudnnLibrary("{}")

    def test_a_missing_library_says_how_to_get_it(self):
        fake = FakeCudnn()
        fake.backend_version_string = lambda: (_ for _ in ()).throw(RuntimeError("no libcudnn.so.9"))
        with pytest.raises(DeviceError, match=r"libcudnn\.so\.9.*pip install"):
            CudnnLibrary("{}", fake)

    def test_a_missing_device_says_so(self):
        fake = FakeCudnn()
        fake.create_handle = lambda: (_ for _ in ()).throw(RuntimeError("CUDNN_STATUS_NOT_INITIALIZED"))
        with pytest.raises(DeviceError, match=r"driver.*CUDNN_STATUS_NOT_INITIALIZED"):
            CudnnLibrary(None, fake)

    @pytest.mark.parametrize("kind", CUDNN_GRAPHS)
    def test_no_engine_names_operation_shapes_and_reason(self, kind):
        said = "No valid engine configs\nWarning: NOT_SUPPORTED; Reason: shapes\nWarning: NOT_SUPPORTED; Reason: shapes"
        _, made = graphs(unsupported=said)
        with pytest.raises(DeviceError) as caught:
            _ = made.operation(request(kind)).kernels
        assert caught.value.where.startswith(f"{kind} of float32[4")
        assert caught.value.actual == "No valid engine configs; shapes"

    def test_plans_that_all_fail(self):
        _, made = graphs(ranked={"A": [("eng1", None)], "FALLBACK": []})
        with pytest.raises(DeviceError, match="no plan that can be built"):
            _ = made.operation(request("batch_norm_backward")).kernels

    def test_unknown_math_and_device(self):
        with pytest.raises(ConfigError, match="float32, tf32, bf16"):
            graphs("fp8")
        with pytest.raises(DeviceError, match="h200"):
            read_device_description("h2000")
        assert '"deviceVer": 900' in read_device_description("h200")
        assert MATH[0] == "float32"


def test_a_handle_runs_on_its_stream():
    fake = FakeCudnn()
    streams = {}
    fake.create_handle = lambda: SimpleNamespace()
    fake.set_stream = lambda handle, stream: streams.update({id(handle): stream})
    fake.destroy_handle = lambda handle: streams.pop(id(handle))
    library = CudnnLibrary("{}", fake)
    handle = library.open_handle(77)
    assert streams == {id(handle): 77}
    library.close_handle(handle)
    assert not streams
