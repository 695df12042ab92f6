"""Every bundled network against PyTorch: loss and gradients of one step, from the same weights.

Rounding moves some values across the border of a ReLU or of a max pooling, and gradients jump there: one such value
among millions outweighs all rounding. Errors in float32 are therefore taken against a float64 network that stays in the
linear piece that the float32 run was in; PyTorch's own errors are taken the same way.
"""

import numpy as np
import pytest

from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.executor import Executor
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.engine.state import State
from bathyal.layers import SGD, Role, forward_graph, training_graph
from bathyal.layers.pool_first import pool_first
from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice
from bathyal.models.registry import MODELS, build_model
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.plan.steps import NO_TENSOR
from bathyal.scheduler.planner import make_plan

pytest.importorskip("torch", reason="PyTorch, the oracle, is missing")

BETWEEN = ("vgg13", "vgg13_bn", "vgg19", "resnet101", "preact_resnet50", "preact_resnet101")
"""As other networks of their family, with no block that these lack."""
DEEP = ("resnet1001", "resnet2500", "preact_resnet152", "preact_resnet164", "preact_resnet200", "preact_resnet1001")
NAMES = [name for name in MODELS if name not in (*DEEP, *BETWEEN)]
SCALED = ["resnet18", "resnet50"]
CLASSES = 6


class Step:
    """One training step of ours without an update, with everything that it computed.

    Under `keep` every tensor has its own memory until the end of the step, so all can be read then.
    """

    def __init__(self, graph, images, labels):
        backend = ReferenceBackend()
        lowered = lower(training_graph(graph, SGD(0.0)), backend)
        problem = Problem(lowered, estimate(lowered, backend), Kernels.FIXED, lay_out_state(lowered))
        plan = make_plan(problem, "keep", 2**45)
        with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
            State(lowered, problem.state, backend, device).initialize(0)
            executor = Executor(plan, lowered, backend, device)
            executor.bind()
            scalars, key = np.array([0.0, 1.0]), np.array([0, 0], np.int64)
            outputs = executor.run({"images": images, "labels": labels, "scalars": scalars, "random_key": key})
            held = {
                i.tensor: np.ndarray(t.shape, t.dtype, arena.memory, i.address).copy()
                for i in plan.instances
                if i.tensor != NO_TENSOR
                for t in [lowered.tensors[i.tensor]]
                if t.role in (Role.GRADIENT, Role.ACTIVATION)
            }
        names = {t.name: t.id for t in lowered.tensors}
        self.loss = float(outputs["loss"][0])
        self.logits = held[lowered.tensors[names[graph.tensors[graph.outputs[0]].name]].id]
        self.gradients = {t.name: held[names[f"{t.name}.gradient"]] for t in lowered.with_role(Role.PARAMETER)}
        self.masks, self.region = {}, {}
        for op in lowered.ops:
            if op.kind == "dropout_training":
                # Where the input is 0 the mask does not matter.
                self.masks[op.name] = (held[op.outputs[0]] != 0) | (held[op.inputs[0]] == 0)
            elif op.kind == "relu":
                self.region[op.name] = held[op.outputs[0]] > 0
            elif op.kind == "max_pool":
                width = lowered.tensors[op.inputs[0]].shape[3]
                self.region[op.name] = winners(held[op.outputs[1]], op.attrs, width)


def winners(index, attrs, width):
    """From positions inside windows to indices within the image."""
    rows, columns = np.divmod(index.astype(np.int64), attrs["kernel"][1])
    rows += np.arange(index.shape[2])[:, None] * attrs["stride"][0] - attrs["padding"][0]
    columns += np.arange(index.shape[3]) * attrs["stride"][1] - attrs["padding"][1]
    return rows * width + columns


def case(name, dtype, scale=None, batch=2):
    """A network, images and labels. Where the arithmetic is exact enough to show every fault, two images are enough."""
    entry = MODELS[name]
    side = max(entry.smallest_image, 64 if entry.image_side > 64 else 8)
    network = build_model(name, classes=CLASSES, **({} if scale is None else {"residual_scale": scale}))
    rng = np.random.default_rng(1)
    images = rng.normal(size=(batch, entry.channels, side, side)).astype(np.float32).astype(dtype)
    return forward_graph(network, images.shape, dtype), images, rng.integers(0, CLASSES, batch)


def distance(found, exact):
    """Relative L2 distance over all arrays together."""
    error = sum(float(np.sum((found[n].astype(np.float64) - exact[n]) ** 2)) for n in exact)
    return (error / sum(float(np.sum(exact[n] ** 2)) for n in exact)) ** 0.5


@pytest.mark.parametrize("name", NAMES)
def test_float64_loss_and_gradients(name, torch_network, initial_values):
    graph, images, labels = case(name, "float64")
    ours = Step(graph, images, labels)
    network = torch_network(graph, initial_values(graph), masks=ours.masks)
    assert ours.loss == pytest.approx(network.loss(images, labels), rel=1e-12)
    exact = network.gradients
    assert distance(ours.gradients, exact) < 1e-9
    largest = max(float(np.linalg.norm(value)) for value in exact.values())
    for parameter, value in exact.items():
        # Where a gradient is zero but for rounding (a bias before a batch norm), only its size can be compared.
        size = max(float(np.linalg.norm(value)), 1e-6 * largest)
        assert np.linalg.norm(ours.gradients[parameter] - value) < 1e-9 * size, parameter


VARIED = [name for name in NAMES if name in ("alexnet", "vgg11_bn", "vgg16", "resnet18", "resnet50", "resnet152")]
"""One of each kind: rounding does not differ more between networks of a family."""


@pytest.mark.parametrize(("name", "scale"), [*((name, None) for name in VARIED), *((name, 0.1) for name in SCALED)])
def test_float32_is_as_exact_as_pytorch(name, scale, torch_network, initial_values):
    # Statistics of four images, because those of two magnify rounding, on both sides, a hundredfold.
    graph64, images64, labels = case(name, "float64", scale, batch=4)
    graph, images, _ = case(name, "float32", scale, batch=4)
    graph64, graph = pool_first(graph64), pool_first(graph)  # so that both sides speak of the same borders
    values = initial_values(graph)

    def errors(logits, gradients, masks, region):
        network = torch_network(graph64, values, masks=masks, regions=region)
        network.loss(images64, labels)
        exact = network.activations[graph.tensors[graph.outputs[0]].name].detach().numpy()
        return distance({"": logits}, {"": exact}), distance(gradients, network.gradients)

    ours = Step(graph, images, labels)
    network = torch_network(graph, values, masks=ours.masks)
    network.loss(images, labels)
    logits = network.activations[graph.tensors[graph.outputs[0]].name].detach().numpy()
    peer = errors(logits, network.gradients, ours.masks, network.region)
    found = errors(ours.logits, ours.gradients, ours.masks, ours.region)
    print(f"{name} {scale}: ours {found}, PyTorch {peer}")
    assert found[0] <= 2 * peer[0]
    assert found[1] <= 2 * peer[1]
