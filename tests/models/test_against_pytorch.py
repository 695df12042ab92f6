"""Every bundled network against PyTorch: loss and gradients of one step, from the same weights."""

import numpy as np
import pytest

from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.executor import Executor
from bathyal.engine.lowering import lower
from bathyal.engine.profile import estimate
from bathyal.engine.state import State
from bathyal.layers import SGD, Role, forward_graph, training_graph
from bathyal.memory.arena import Arena
from bathyal.memory.host import HostDevice
from bathyal.models.registry import MODELS, build_model
from bathyal.scheduler.kernels import Kernels
from bathyal.scheduler.placement import lay_out_state
from bathyal.scheduler.planner import Problem, make_plan

pytest.importorskip("torch", reason="PyTorch, the oracle, is missing")

NAMES = [name for name in MODELS if name not in ("resnet1001", "resnet2500")]
SCALED = [name for name in NAMES if "resnet" in name]
BATCH, CLASSES = 3, 6


def batch(name, dtype):
    entry = MODELS[name]
    side = max(entry.smallest_image, 32)
    rng = np.random.default_rng(1)
    images = rng.normal(size=(BATCH, entry.channels, side, side)).astype(np.float32).astype(dtype)
    return images, rng.integers(0, CLASSES, BATCH)


def step(graph, images, labels):
    """Loss, gradients by parameter, and where dropout kept its input, of one step of ours.

    Under `keep` every tensor has its own memory until the end of the step, so all can be read then.
    """
    backend = ReferenceBackend()
    lowered = lower(training_graph(graph, SGD(0.0)), backend)
    problem = Problem(lowered, estimate(lowered, backend), Kernels.FIXED, lay_out_state(lowered))
    plan = make_plan(problem, "keep", 2**45)
    with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
        state = State(lowered, problem.state, backend, device)
        state.initialize(0)
        executor = Executor(plan, lowered, backend, device)
        executor.bind()
        outputs = executor.run(
            {"images": images, "labels": labels, "scalars": np.zeros(2) + 1, "random_key": np.array([0, 0], np.int64)}
            | {"scalars": np.array([0.0, 1.0])}
        )
        held = {
            lowered.tensors[i.tensor].name: np.ndarray(
                lowered.tensors[i.tensor].shape, lowered.tensors[i.tensor].dtype, arena.memory, i.address
            ).copy()
            for i in plan.instances
            if i.tensor >= 0 and lowered.tensors[i.tensor].role in (Role.GRADIENT, Role.ACTIVATION)
        }
    gradients = {t.name: held[f"{t.name}.gradient"] for t in lowered.with_role(Role.PARAMETER)}
    masks = {
        op.name: (held[lowered.tensors[op.outputs[0]].name] != 0) | (held[lowered.tensors[op.inputs[0]].name] == 0)
        for op in lowered.ops
        if op.kind == "dropout_training"
    }
    return float(outputs["loss"][0]), gradients, masks


def distance(found, exact):
    """Relative L2 distance over all gradients together."""
    error = sum(float(np.sum((found[n].astype(np.float64) - exact[n]) ** 2)) for n in exact)
    return (error / sum(float(np.sum(exact[n] ** 2)) for n in exact)) ** 0.5


def graphs(name, dtype, scale=None):
    network = build_model(name, classes=CLASSES, **({} if scale is None else {"residual_scale": scale}))
    images, labels = batch(name, dtype)
    return forward_graph(network, images.shape, dtype), images, labels


def oracle(torch_network, initial_values, graph, images, labels, masks):
    network = torch_network(graph, initial_values(graph), masks=masks)
    return network.loss(images, labels), network.gradients


@pytest.mark.parametrize("name", NAMES)
def test_float64_loss_and_gradients(name, torch_network, initial_values):
    graph, images, labels = graphs(name, "float64")
    loss, gradients, masks = step(graph, images, labels)
    expected, exact = oracle(torch_network, initial_values, graph, images, labels, masks)
    assert loss == pytest.approx(expected, rel=1e-12)
    assert distance(gradients, exact) < 1e-9
    for parameter, value in exact.items():
        # Where a gradient is zero but for rounding (a bias before a batch norm), only its size can be compared.
        scale = max(float(np.linalg.norm(value)), 1e-6 * max(float(np.linalg.norm(v)) for v in exact.values()))
        assert np.linalg.norm(gradients[parameter] - value) < 1e-9 * scale, parameter


@pytest.mark.parametrize(("name", "scale"), [*((name, None) for name in NAMES), *((name, 0.1) for name in SCALED)])
def test_float32_is_as_exact_as_pytorch(name, scale, torch_network, initial_values):
    graph64, images64, labels = graphs(name, "float64", scale)
    graph, images, _ = graphs(name, "float32", scale)
    loss, gradients, masks = step(graph, images, labels)
    expected, exact = oracle(torch_network, initial_values, graph64, images64, labels, masks)
    peer_loss, peer = oracle(torch_network, initial_values, graph, images, labels, masks)
    assert distance(gradients, exact) <= 2 * distance(peer, exact)
    assert abs(loss - expected) <= 2 * max(abs(peer_loss - expected), 4e-7 * abs(expected))
