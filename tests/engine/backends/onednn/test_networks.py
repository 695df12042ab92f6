"""Whole networks on oneDNN: the reference backend's results, and the same bits under every strategy and budget."""

import numpy as np
import pytest

from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.executor import Executor
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate, measure
from bathyal.engine.state import State
from bathyal.layers import (
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    Identity,
    Linear,
    MaxPool2d,
    ReLU,
    Residual,
    Sequential,
    Tanh,
    evaluation_graph,
    forward_graph,
    prediction_graph,
)
from bathyal.layers.graph import STATE
from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice
from bathyal.memory.devices.simulated import SimulatedDevice
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import make_plan
from bathyal.scheduler.strategies.names import STRATEGIES
from tests.support.network_runs import (
    PLENTY,
    SHAPE,
    check_agreement,
    feeds,
    least_bytes,
    poisoned_arena,
    problem,
    run,
    run_on_host,
)
from tests.support.onednn_library import onednn_backend
from tests.support.operation_harness import relative_distance
from tests.support.random_networks import random_network
from tests.support.spilling import linked, needs_link, tier_for

BACKEND = onednn_backend()
REFERENCE = ReferenceBackend()
END = (Flatten(), Linear(7))

UNUSUAL = {
    "channels that fill no block": Sequential(
        Conv2d(10, 3, padding=1), BatchNorm2d(), ReLU(), Conv2d(20, 3, groups=5), MaxPool2d(2), *END
    ),
    "groups": Sequential(
        Conv2d(16, 1),
        Conv2d(16, 3, padding=1, groups=16),
        ReLU(),
        Conv2d(8, 3, groups=2),
        Conv2d(8, 3, padding=1),
        *END,
    ),
    "images read by everything": Sequential(
        Branches(Identity(), Conv2d(5, 1), ReLU(), BatchNorm2d(), MaxPool2d(3, 1, 1), AvgPool2d(3, 1, 1)),
        Conv2d(4, 3),
        *END,
    ),
    "a mean that goes to numpy": Sequential(
        Conv2d(16, 1), AvgPool2d(3, 2, 1, ceil_mode=True), ReLU(), Conv2d(6, 2), GlobalAvgPool2d(), *END
    ),
    "plain and blocked added": Sequential(
        Conv2d(12, 1), Residual(Tanh()), Residual(Sequential(Tanh(), Conv2d(12, 3, padding=1))), *END
    ),
    "one pixel": Sequential(Conv2d(16, 8), Tanh(), Conv2d(32, 1), ReLU(), Residual(Conv2d(32, 1)), *END),
}


def network(key):
    return UNUSUAL[key] if key in UNUSUAL else random_network(key)


def check_padding(case, device, backend=BACKEND):
    """Weights, statistics and momentum hold zeros where a layout pads."""
    state = State(case.graph, case.state, backend, device)
    padded = 0
    for tensor in case.graph.with_role(*STATE):
        address = case.state.addresses[tensor.name]
        content = device.arena.memory[address : address + tensor.nbytes]
        assert (backend.encode(tensor, state.read(tensor.name)) == content).all(), tensor.name
        padded += tensor.nbytes > tensor.spec.nbytes
    return padded


@pytest.mark.parametrize("key", [*range(24), *UNUSUAL])
def test_three_steps_agree_with_the_reference_backend(key):
    results = []
    for backend in (BACKEND, REFERENCE):
        case = problem(network(key), backend)
        results.append(run_on_host(case, make_plan(case, "liveness", PLENTY), backend))
    check_agreement(*results)


@pytest.mark.parametrize("key", [*range(8), *UNUSUAL])
def test_every_strategy_and_budget_gives_the_bits_of_keep(key):
    case = problem(network(key), BACKEND)
    plans = [make_plan(case, "keep", PLENTY)]
    for strategy in ("liveness", "chain", "sequential", "revolve", "offload", "superneurons-memory"):
        case = linked(case, strategy)
        least = least_bytes(case, strategy)
        most = make_plan(case, strategy, PLENTY).peak_bytes
        ks = (0, 1) if needs_link(strategy) or strategy in ("sequential", "revolve") else range(4)
        plans += [make_plan(case, strategy, least + (most - least) * k // 3) for k in ks]
    results = []
    for plan in plans:
        with poisoned_arena(plan.peak_bytes) as arena, HostDevice(arena) as device, tier_for(plan) as tier:
            found = run(case, plan, BACKEND, device, tier)
            assert found.executor.high_water_bytes == plan.peak_bytes
            check_padding(case, device)
            results.append(found.bits)
            assert np.isfinite(found.losses).all()
    assert all(result == results[0] for result in results)


def test_padding_was_there_to_be_checked():
    case = problem(UNUSUAL["channels that fill no block"], BACKEND)
    plan = make_plan(case, "liveness", PLENTY)
    with poisoned_arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
        run(case, plan, BACKEND, device, None)
        assert check_padding(case, device) >= 2


@pytest.mark.parametrize("key", [1, 4, "groups", "one pixel"])
def test_no_byte_beyond_the_peak_is_touched(key):
    case = problem(network(key), BACKEND)
    plan = make_plan(case, "chain", least_bytes(case, "chain"))
    margin = 1 << 16
    with poisoned_arena(plan.peak_bytes + margin) as arena, HostDevice(arena) as device:
        run(case, plan, BACKEND, device, None)
        assert (arena.memory[plan.peak_bytes :] == 0xFF).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("key", [0, 3, 7, "groups", "plain and blocked added"])
def test_simulated_device_finds_no_race_and_gives_the_same_bits(key, strategy):
    case = linked(problem(network(key), BACKEND), strategy)
    plan = make_plan(case, strategy, least_bytes(case, strategy))
    expected = run_on_host(case, plan, BACKEND).bits
    for order in range(3):
        assert run_on_host(case, plan, BACKEND, lambda arena, o=order: SimulatedDevice(arena, o)).bits == expected


@pytest.mark.parametrize("key", [2, 5, "groups", "channels that fill no block"])
def test_kernels_that_fit_agree_at_every_budget(key):
    """With measured costs each budget may have its own kernels; results then agree but for rounding."""
    results = []
    for backend in (BACKEND, onednn_backend()):
        case = problem(network(key), backend, kernels=Kernels.FIT)
        with HostDevice(Arena(64 * 2**20)) as device:
            costs = measure(case.graph, backend, device, threads=1, folder=None)
        case = Problem(case.graph, costs, Kernels.FIT, case.state)
        for budget in (least_bytes(case, "chain"), PLENTY):
            plan = make_plan(case, "chain", budget)
            found = run_on_host(case, plan, backend)
            assert found.executor.high_water_bytes == plan.peak_bytes
            results.append(found.losses)
    for losses in results[1:]:
        np.testing.assert_allclose(losses, results[0], rtol=1e-4)


@pytest.mark.parametrize("key", [*range(8), *UNUSUAL])
@pytest.mark.parametrize("batch", [1, 5])
def test_evaluation_and_prediction_share_the_state_of_training(key, batch):
    """Graphs of another batch read the weights where and as training has left them."""
    case = problem(network(key), BACKEND)
    plan = make_plan(case, "liveness", PLENTY)
    forward = forward_graph(network(key), (batch, *SHAPE[1:]))
    images = feeds(9, (batch, *SHAPE[1:]))
    with poisoned_arena(2**24) as arena, HostDevice(arena) as device:
        weights = run(case, plan, BACKEND, device, None).weights
        for mode in (evaluation_graph, prediction_graph):
            graph = lower(mode(forward), BACKEND)
            trained = {t.name: t for t in case.graph.with_role(*STATE)}
            for tensor in graph.with_role(*STATE):
                assert (tensor.layout, tensor.nbytes) == (trained[tensor.name].layout, trained[tensor.name].nbytes)
            ours = Problem(graph, estimate(graph, BACKEND), Kernels.FIXED, case.state)
            executor = Executor(make_plan(ours, "liveness", 2**24), graph, BACKEND, device)
            executor.bind()
            found = executor.run(images)
            for name, values in expected_outputs(mode(forward), weights, images).items():
                if values.dtype == np.float32:
                    assert relative_distance(found[name], values) <= 1e-4
                assert found[name].shape == values.shape


def expected_outputs(graph, weights, images):
    """The reference backend's outputs with given weights."""
    case = Problem(graph, estimate(graph, REFERENCE), Kernels.FIXED, lay_out_state(graph))
    plan = make_plan(case, "liveness", PLENTY)
    with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
        state = State(graph, case.state, REFERENCE, device)
        for name in state.names():
            state.write(name, weights[name])
        executor = Executor(plan, graph, REFERENCE, device)
        executor.bind()
        return executor.run(images)


def test_a_short_last_batch_trains_the_same_state():
    case = problem(4, BACKEND)
    short = problem(network(4), BACKEND, shape=(1, *SHAPE[1:]))
    assert [(t.layout, t.nbytes) for t in short.graph.with_role(*STATE)] == [
        (t.layout, t.nbytes) for t in case.graph.with_role(*STATE)
    ]
    assert short.state == case.state
