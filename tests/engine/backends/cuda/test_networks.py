"""Whole training steps of the CUDA backend without a GPU.

Its own kernels run as they are, compiled for the CPU; what cuDNN and cuBLAS would compute numpy does. On the simulated
device this looks for races; on a CUDA runtime of the host's memory it drives the very device that a GPU is driven with:
streams, events, pinned memory and captured graphs.
"""

from dataclasses import replace

import numpy as np
import pytest

from bathyal.engine.backends.cuda.backend import CudaBackend
from bathyal.engine.backends.cuda.bfloat16 import from_bfloat16, to_bfloat16
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.executor import Executor
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.engine.state import State
from bathyal.layers import SGD, evaluation_graph, forward_graph, training_graph
from bathyal.layers.graph import STATE, Phase, Role
from bathyal.memory.arena import Arena
from bathyal.memory.cuda.device import CudaMachine
from bathyal.memory.devices.host import HostDevice, HostMachine
from bathyal.memory.devices.simulated import SimulatedDevice
from bathyal.memory.errors import ConfigError
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import make_plan
from bathyal.scheduler.strategies.names import STRATEGIES
from tests.support.cuda_library import CpuLibrary
from tests.support.fake_cuda import FakeCuda
from tests.support.network_runs import (
    PLENTY,
    SHAPE,
    STEPS,
    check_agreement,
    feeds,
    least_plan,
    problem,
    run_on_host,
    run_on_own_device,
)
from tests.support.random_networks import random_network


def host_backend(math="float32"):
    """Computes at once in the host's memory, so that any device will do."""
    return CudaBackend(CpuLibrary(), HostMachine(), math)


def on_gpu(case, plan, seed=0, graphs=True):
    """On a device whose streams run as late as events allow; returns its runtime and library too."""
    runtime = FakeCuda(seed=seed)
    library = CpuLibrary(runtime.enqueue)
    backend = CudaBackend(library, CudaMachine(runtime, graphs=graphs))
    return run_on_own_device(case, plan, backend), runtime, library


@pytest.mark.parametrize("seed", range(16))
def test_three_steps_agree_with_the_reference_backend(seed):
    results = []
    for backend in (host_backend(), ReferenceBackend()):
        case = problem(seed, backend)
        results.append(run_on_host(case, make_plan(case, "liveness", PLENTY), backend))
    check_agreement(*results)


@pytest.mark.parametrize("seed", range(4))
def test_every_strategy_and_budget_gives_the_bits_of_keep(seed):
    backend = host_backend()
    case = problem(seed, backend)
    expected = run_on_host(case, make_plan(case, "keep", PLENTY), backend).bits
    for strategy in STRATEGIES:
        plan = least_plan(case, strategy)
        found = run_on_host(case, plan, backend)
        assert found.executor.high_water_bytes == plan.peak_bytes
        assert found.bits == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", [0, 7])
def test_the_simulated_device_finds_no_race(seed, strategy):
    backend = host_backend()
    case = problem(seed, backend)
    plan = least_plan(case, strategy)
    expected = run_on_host(case, plan, backend).bits
    for order in range(2):
        assert run_on_host(case, plan, backend, lambda arena, o=order: SimulatedDevice(arena, o)).bits == expected


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("strategy", ["keep", "chain", "offload", "superneurons-memory", "stream"])
@pytest.mark.parametrize("seed", [1, 4])
def test_streams_and_captured_graphs_give_the_same_bits(seed, strategy, graphs):
    backend = host_backend()
    case = problem(seed, backend)
    plan = least_plan(case, strategy)
    expected = run_on_host(case, plan, backend).bits
    for order in range(4):
        found, *_ = on_gpu(case, plan, order, graphs)
        assert found.bits == expected
        assert found.executor.high_water_bytes == plan.peak_bytes


@pytest.mark.parametrize("strategy", ["chain", "offload"])
def test_every_pointer_lies_in_the_arena_and_a_steady_step_allocates_nothing(strategy):
    case = problem(1, host_backend())
    plan = least_plan(case, strategy)
    runtime = FakeCuda()
    library = CpuLibrary(runtime.enqueue)
    machine = CudaMachine(runtime, graphs=False)
    with machine.open(plan.peak_bytes) as device:
        tier = device.own_tier(max(plan.outside_bytes, 4096))
        state = State(case.graph, case.state, CudaBackend(library, machine), device, tier)
        state.initialize(0)
        executor = Executor(plan, case.graph, CudaBackend(library, machine), device, tier)
        executor.bind()
        for step in range(2):  # events and launches are there then
            executor.run(feeds(step))
        library.pointers.clear()
        before = dict(runtime.calls)
        for step in range(2, 5):
            executor.run(feeds(step))
        new = {name for name, count in runtime.calls.items() if count > before.get(name, 0)}
        copies = {"memcpyAsync", "enqueue", "inside"}
        order = {"eventRecord", "streamWaitEvent", "streamSynchronize"}
        assert new == copies | order
        base = device.arena.base
        assert len(library.pointers) > 50
        for pointer, nbytes in library.pointers:
            assert base <= pointer <= pointer + nbytes <= base + plan.peak_bytes
        tier.close()


def test_a_captured_step_is_one_launch():
    case = problem(1, host_backend())
    plan = least_plan(case, "offload")
    _, eager, every_step = on_gpu(case, plan, graphs=False)
    _, captured, library = on_gpu(case, plan, graphs=True)
    assert eager.calls["graphLaunch"] == 0
    assert captured.calls["graphLaunch"] == STEPS - 1
    assert captured.calls["graphInstantiate"] == 1
    # Launched by the host once, and once more to be captured.
    assert STEPS * len(library.launched) == 2 * len(every_step.launched)


def test_the_planner_takes_the_fastest_plan_that_fits():
    backend = host_backend()
    case = problem(1, backend, Kernels.FIT)
    rows = tuple(
        tuple(replace(k, seconds=k.seconds * (1 + n)) for n, k in enumerate(row)) for row in case.costs.kernels
    )
    case = replace(case, costs=replace(case.costs, kernels=rows))

    def chosen(plan):
        kernels = {s.op: s.kernel for s in plan.runs}
        return {rows[op][kernel].name for op, kernel in kernels.items() if case.graph.ops[op].kind.startswith("conv2d")}

    assert chosen(make_plan(case, "liveness", PLENTY)) == {"fast"}
    assert chosen(least_plan(case, "liveness")) != {"fast"}
    assert "lean" in chosen(least_plan(case, "liveness"))


def test_images_lie_channels_last_and_nothing_is_converted():
    backend = host_backend()
    for seed in range(12):
        graph = problem(seed, backend).graph
        assert all((t.layout == "nhwc") == (len(t.shape) == 4) for t in graph.tensors)
        assert not [op for op in graph.ops if op.kind == "convert"]
    images = graph.with_role(Role.INPUT)[0]
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    content = backend.encode(images, values)
    assert (content.view(np.float32).reshape(3, 8, 8, 3) == values.transpose(0, 2, 3, 1)).all()
    assert (backend.decode(images, content) == values).all()


def test_an_evaluation_graph_runs_too():
    results = []
    for backend in (host_backend(), ReferenceBackend()):
        graph = lower(evaluation_graph(forward_graph(random_network(4), SHAPE)), backend)
        case = Problem(graph, estimate(graph, backend), Kernels.FIXED, lay_out_state(graph))
        plan = make_plan(case, "liveness", PLENTY)
        with HostDevice(Arena(plan.peak_bytes)) as device:
            state = State(graph, case.state, backend, device)
            state.initialize(5)
            executor = Executor(plan, graph, backend, device)
            executor.bind()
            results.append(float(executor.run(feeds(0))["loss"][0]))
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_another_type_is_refused():
    graph = training_graph(forward_graph(random_network(0), SHAPE, "float64"), SGD(0.1))
    with pytest.raises(ConfigError, match="float32 on the device 'cuda'"):
        lower(graph, host_backend())


class TestBfloat16:
    """Images in 16 bits; weights, statistics and what the update reads in 32."""

    @pytest.mark.parametrize("seed", range(16))
    def test_a_step_agrees_with_the_reference_backend(self, seed):
        results = []
        for backend in (host_backend("bf16"), ReferenceBackend()):
            case = problem(seed, backend)
            results.append(run_on_host(case, make_plan(case, "liveness", PLENTY), backend, steps=1))
        # A number has 8 bits, and a gradient passes a dozen layers.
        check_agreement(*results, most=0.1)

    @pytest.mark.parametrize("strategy", ["liveness", "chain", "offload", "superneurons-memory", "stream"])
    @pytest.mark.parametrize("seed", [0, 1, 4])
    def test_every_strategy_gives_the_bits_of_keep_and_no_race(self, seed, strategy):
        backend = host_backend("bf16")
        case = problem(seed, backend)
        expected = run_on_host(case, make_plan(case, "keep", PLENTY), backend).bits
        plan = least_plan(case, strategy)
        found = run_on_host(case, plan, backend)
        assert found.bits == expected
        assert found.executor.high_water_bytes == plan.peak_bytes
        assert run_on_host(case, plan, backend, lambda arena: SimulatedDevice(arena, 1)).bits == expected

    @pytest.mark.parametrize("seed", range(12))
    def test_images_take_half_and_state_what_it_took(self, seed):
        wide, narrow = (problem(seed, host_backend(math)).graph for math in ("float32", "bf16"))
        assert narrow.state_bytes == wide.state_bytes
        found = {t.name: t for t in narrow.tensors}
        updated = {t for op in wide.ops if op.phase is Phase.UPDATE for t in op.inputs}
        for tensor in wide.tensors:
            image = len(tensor.shape) == 4 and tensor.id not in updated and tensor.dtype == "float32"
            half = image and tensor.role not in STATE
            assert found[tensor.name].nbytes * (2 if half else 1) == tensor.nbytes, tensor.name
        for op in narrow.ops:
            if op.kind == "convert":
                source, target = (narrow.tensors[t] for t in (*op.inputs, *op.outputs))
                assert {source.nbytes, target.nbytes} == {2 * source.elements, 4 * source.elements}

    def test_values_are_rounded_to_the_nearest_and_come_back(self):
        images = problem(0, host_backend("bf16")).graph.with_role(Role.INPUT)[0]
        backend = host_backend("bf16")
        values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
        content = backend.encode(images, values)
        assert content.nbytes == values.nbytes // 2
        back = backend.decode(images, content)
        np.testing.assert_allclose(back, values, rtol=2**-8)
        assert (backend.encode(images, back) == content).all()
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 1 + 2**-8, 1 + 3 * 2**-8], np.float32)
        expected = [np.nan, np.inf, -np.inf, -0.0, 1.0, 1 + 2**-6]
        np.testing.assert_array_equal(from_bfloat16(to_bfloat16(special)), np.array(expected, np.float32))
