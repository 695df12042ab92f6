"""Fused operations: which are fused, and the bits of the operations that they stand for."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bathyal.engine.backends.fusion import FUSED, fuse
from bathyal.engine.backends.onednn.lowering import Lowering
from bathyal.engine.executor import Executor
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.engine.state import State
from bathyal.layers import (
    SGD,
    Add,
    BatchNorm2d,
    Branches,
    Conv2d,
    Flatten,
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
    training_graph,
)
from bathyal.layers.graph import STATE, Graph, Phase, Role
from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice
from bathyal.memory.errors import BudgetError
from bathyal.scheduler.blocks.cut import assign_blocks
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import make_plan
from tests.support.lowered_graphs import Memory
from tests.support.onednn_library import onednn_backend
from tests.support.random_networks import random_network

BACKEND = onednn_backend()
END = (Flatten(), Linear(7))
SHAPE = (3, 3, 8, 8)
PAIR = Sequential(Conv2d(4, 1), BatchNorm2d(), ReLU(), *END)


def training(network, shape=SHAPE):
    return training_graph(forward_graph(network, shape), SGD(0.05, momentum=0.9, weight_decay=1e-3))


def unfused(graph):
    """Lowered as `lower` does, but for the fusion."""
    return assign_blocks(Lowering(graph, BACKEND._layouts).run())


def noise(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def kinds(graph):
    return [op.kind for op in graph.ops]


def body(network, shape=SHAPE):
    """Kinds of the fused forward pass without the end."""
    return [k for k in kinds(fuse(forward_graph(network, shape))) if k not in ("flatten", "linear")]


def trained(network, shape=SHAPE):
    """Kinds of the fused training graph without what every such graph has."""
    common = ("flatten", "reshape", "sgd_update", "softmax_cross_entropy", "batch_norm_update", "linear", "conv2d")
    return [k for k in kinds(fuse(training(network, shape))) if not k.startswith(common)]


# Which are fused


def test_a_batch_norm_and_its_relu_become_one_with_their_gradients():
    assert trained(PAIR)[:1] == ["batch_norm_relu"]
    assert trained(PAIR)[-1:] == ["batch_norm_relu_backward"]
    assert not {"relu", "relu_backward", "batch_norm_training", "batch_norm_backward"} & set(trained(PAIR))
    plain = training(PAIR)
    graph = fuse(plain)
    by_name = {t.name: t for t in graph.tensors}
    forward = next(op for op in graph.ops if op.kind == "batch_norm_relu")
    backward = next(op for op in graph.ops if op.kind == "batch_norm_relu_backward")
    norm, relu = (next(op for op in plain.ops if op.kind == k) for k in ("batch_norm_training", "relu"))
    y, between = plain.tensors[relu.outputs[0]].name, plain.tensors[norm.outputs[0]].name

    def names(ids):
        return [graph.tensors[t].name for t in ids]

    assert names(forward.outputs) == [y, f"{between}.mean", f"{between}.var", f"{between}.mask"]
    assert names(forward.inputs) == [plain.tensors[t].name for t in norm.inputs]
    x, weight, _ = names(forward.inputs)
    assert names(backward.inputs) == [x, f"{y}.gradient", weight, *names(forward.outputs)[1:]]
    assert names(backward.outputs) == [f"{name}.gradient" for name in names(forward.inputs)]
    assert backward.forward_op == forward.id and backward.phase is Phase.BACKWARD
    assert forward.attrs == norm.attrs and forward.name == norm.name
    assert not {between, f"{between}.gradient"} & by_name.keys()
    mask = by_name[f"{between}.mask"]
    assert (mask.dtype, mask.shape, mask.role) == ("uint8", by_name[y].shape, Role.ACTIVATION)


def test_what_reads_between_keeps_both_apart():
    read_twice = Branches(Sequential(ReLU(), Tanh()), Tanh(), merge=Add())
    layers = (Tanh(), BatchNorm2d(), read_twice, *END)
    assert "batch_norm_relu" not in trained(Sequential(*layers))
    assert {"relu", "batch_norm_training"} <= set(trained(Sequential(*layers)))
    added = Branches(Conv2d(4, 1), Conv2d(4, 1), merge=Add())
    assert "add_relu" not in body(Sequential(added, read_twice, *END))
    assert "add_relu" in body(Sequential(added, ReLU(), *END))


def test_a_relu_that_several_read_is_fused():
    layers = (BatchNorm2d(), ReLU(), Branches(Tanh(), Conv2d(3, 1), Identity(), merge=Add()), *END)
    assert {"batch_norm_relu", "batch_norm_relu_backward"} <= set(trained(Sequential(*layers)))
    assert "relu" not in trained(Sequential(*layers))


def test_an_output_of_the_graph_stays():
    graph = prediction_graph(forward_graph(Sequential(BatchNorm2d(), ReLU()), SHAPE))
    assert kinds(fuse(graph)) == ["batch_norm_relu_inference"]
    between = Graph(graph.name, graph.tensors, graph.ops, (graph.ops[0].outputs[0], *graph.outputs), 1)
    assert fuse(between) == between


def test_a_residual_block():
    block = Residual(
        Sequential(Conv2d(4, 3, padding=1), BatchNorm2d(), ReLU(), Conv2d(4, 1), BatchNorm2d()),
        Sequential(Conv2d(4, 1), BatchNorm2d()),
        ReLU(),
    )
    assert [k for k in trained(Sequential(block, Tanh(), *END)) if not k.startswith("tanh")] == [
        "batch_norm_relu",
        "batch_norm_training",
        "batch_norm_training",
        "add_relu",
        "relu_backward",
        "batch_norm_backward",
        "batch_norm_backward",
        "batch_norm_relu_backward",
    ]
    graph = fuse(training(Sequential(block, Tanh(), *END)))
    fused = next(op for op in graph.ops if op.kind == "add_relu")
    backward = next(op for op in graph.ops if op.kind == "relu_backward")
    assert backward.forward_op == fused.id
    assert backward.inputs[0] == fused.outputs[0]


def test_evaluation_and_prediction_are_fused():
    for mode in (evaluation_graph, prediction_graph):
        assert kinds(fuse(mode(forward_graph(PAIR, SHAPE))))[:2] == ["conv2d", "batch_norm_relu_inference"]


@pytest.mark.parametrize("seed", range(40))
def test_a_fused_graph_is_a_graph(seed):
    """Ids are places, names are unique, everything is made once and before it is read, and nothing lies about."""
    forward = forward_graph(random_network(seed), SHAPE)
    for plain in (training(random_network(seed)), evaluation_graph(forward), prediction_graph(forward)):
        graph = fuse(plain)
        assert [t.id for t in graph.tensors] == list(range(len(graph.tensors)))
        assert [op.id for op in graph.ops] == list(range(len(graph.ops)))
        assert len({t.name for t in graph.tensors}) == len(graph.tensors)
        given = {t.id for t in graph.tensors if t.role in STATE or t.role in (Role.INPUT, Role.LABEL, Role.SCALARS)}
        for op in graph.ops:
            assert set(op.inputs) <= given
            assert not set(op.outputs) & given
            given.update(op.outputs)
            forward_op = graph.ops[op.forward_op]
            assert forward_op.id == op.id or (forward_op.phase in (Phase.FORWARD, Phase.LOSS) and forward_op.id < op.id)
        assert given == set(range(len(graph.tensors)))
        named = [[(g.tensors[t].name, g.tensors[t].spec) for t in g.outputs] for g in (plain, graph)]
        assert named[0] == named[1]
        state = [[(t.name, t.initializer) for t in g.with_role(*STATE)] for g in (plain, graph)]
        assert state[0] == state[1]
        assert graph.layers == plain.layers
        assert Graph.from_json(graph.to_json()) == graph
        assert fuse(graph) == graph
        fused = sum(kind in FUSED.values() for kind in kinds(graph))
        assert len(plain.ops) - len(graph.ops) == fused + kinds(graph).count("batch_norm_relu")


def test_nothing_to_fuse_is_no_change():
    graph = training(Sequential(Conv2d(4, 1), ReLU(), BatchNorm2d(), Conv2d(4, 1), ReLU(), *END))
    assert fuse(graph) == graph


def test_an_old_processor_fuses_nothing():
    """There the library computes a batch norm with ReLU by its reference code."""
    backend = onednn_backend()
    assert "batch_norm_relu" in kinds(lower(training(PAIR), backend))
    backend._engine.isa = 0x3  # AVX
    assert lower(training(PAIR), backend) == unfused(training(PAIR))


# The results of the operations apart


def first_content(tensor):
    """Something for every tensor that no operation makes, by its name."""
    seed = sum(tensor.name.encode())
    match tensor.role:
        case Role.LABEL:
            return np.arange(tensor.shape[0]) % 7
        case Role.SCALARS:
            return np.array([0.1, 1.0]) if tensor.dtype == "float64" else np.array([1, 2])
        case _ if tensor.name.endswith(("var", "momentum")):
            return np.abs(noise(seed, tensor.shape))
        case _:
            return noise(seed, tensor.shape)


def left_behind(graph, repeat=False):
    """Every tensor by name after all operations; with `repeat` each that may run twice has, outputs lost between."""
    memory = Memory(graph, BACKEND)
    for tensor in graph.tensors:
        if tensor.role not in (Role.ACTIVATION, Role.GRADIENT, Role.METRIC):
            memory.write(tensor.id, first_content(tensor))
    for op in graph.ops:
        memory.run(op)
        if repeat and op.phase is Phase.FORWARD and not op.updates:
            kept = {"batch_norm_training": (1, 2), "batch_norm_relu": (1, 2)}.get(op.kind, ())
            for position, t in enumerate(op.outputs):
                if position not in kept:
                    memory.content(t)[:] = 0xFF
            memory.run(op, repeat=True)
    found = {}
    for t in graph.tensors:
        if t.layout.startswith(("mask", "index")):
            found[t.name] = memory.content(t.id).copy()
        else:
            found[t.name] = memory.read(t.id)  # which looks at the padding
    return found


def check_same_results(plain, repeat=False):
    """Fused and not, all tensors that both have are equal; returns the kinds of the fused graph."""
    graph = lower(plain, BACKEND)
    ours, apart = left_behind(graph, repeat), left_behind(unfused(plain))
    shared = (ours.keys() & apart.keys()) - {n for n in ours if ".converted" in n}
    assert {t.name for t in plain.tensors if t.role is not Role.ACTIVATION} - shared <= {
        t.name for t in plain.tensors if t.role is Role.GRADIENT
    }
    for name in shared:
        # Equal but for the sign of zeros in the gradient of a channel that is all cut off.
        np.testing.assert_array_equal(ours[name], apart[name], name)
    return set(kinds(graph))


def everything(channels, blocked):
    parts = (
        BatchNorm2d(),
        ReLU(),
        Residual(
            Sequential(Conv2d(channels, 1), BatchNorm2d(), ReLU(), Conv2d(channels, 3, padding=1), BatchNorm2d()),
            activation=ReLU(),
        ),
        Branches(Sequential(BatchNorm2d(), ReLU()), Sequential(ReLU(), BatchNorm2d()), merge=Add()),
        ReLU(),
    )
    around = ((Conv2d(channels, 1),), (Conv2d(6, 1),)) if blocked else ((), ())
    return Sequential(*around[0], *parts, *around[1], *END)


@pytest.mark.parametrize("channels", [5, 16, 33])
@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("image", [(1, 2), (7, 9)])
@pytest.mark.parametrize("repeat", [False, True])
def test_fused_operations_give_the_results_of_those_apart(channels, blocked, image, repeat):
    """Outputs, gradients and updates; `repeat` runs every forward operation again by the statistics of its first."""
    forward = forward_graph(everything(channels, blocked), (3, channels, *image))
    made = check_same_results(training_graph(forward, SGD(0.05, momentum=0.9)), repeat)
    assert {"batch_norm_relu", "batch_norm_relu_backward", "add_relu"} <= made
    made = check_same_results(evaluation_graph(forward), repeat)
    assert "add_relu" in made
    # Of a fused one's NaN neither the output nor a statistic would tell.
    assert "batch_norm_relu_inference" not in made


@pytest.mark.parametrize("shape", [(3, 10), (2, 3, 5), (2, 3, 4, 2, 2), (2, 1, 3, 1, 2, 3)], ids=str)
def test_sums_of_any_number_of_dimensions(shape):
    plain = training(Sequential(Residual(Tanh(), activation=ReLU()), *END), shape)
    assert "add_relu" in check_same_results(plain)


@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("channels", [10, 32])
def test_a_batch_norm_with_relu_may_overwrite_its_input(blocked, repeat, channels):
    layers = (*([Conv2d(channels, 1)] if blocked else []), BatchNorm2d(), ReLU())
    graph = lower(training(Sequential(*layers, *END), (3, channels, 9, 7)), BACKEND)
    op = next(op for op in graph.ops if op.kind == "batch_norm_relu")
    memory = Memory(graph, BACKEND)
    x = 3 * noise(1, graph.tensors[op.inputs[0]].shape) + 1
    for t in op.inputs:
        memory.write(t, noise(t, graph.tensors[t].shape))
    memory.write(op.inputs[0], x)
    memory.run(op)
    apart = [memory.content(t).copy() for t in op.outputs]
    assert (memory.read(op.outputs[0]) > 0).any()
    places = [memory.addresses[t] for t in (*op.inputs, *op.outputs)]
    places[3] = places[0]
    for t in op.outputs if not repeat else (op.outputs[0], op.outputs[3]):
        memory.content(t)[:] = 0xFF
    BACKEND.bind(graph, op, 0, repeat, memory.arena)([*places, memory.workspace])
    together = [memory.content(t) for t in (op.inputs[0], *op.outputs[1:])]
    for ours, exact in zip(together, apart, strict=True):
        assert (ours == exact).all()


def test_a_repeated_batch_norm_with_relu_reads_the_statistics():
    graph = lower(training(PAIR), BACKEND)
    op = next(op for op in graph.ops if op.kind == "batch_norm_relu")
    memory = Memory(graph, BACKEND)
    for t in op.inputs:
        memory.write(t, noise(t, graph.tensors[t].shape))
    memory.run(op)
    y, mask = (memory.content(op.outputs[i]).copy() for i in (0, 3))
    memory.write(op.outputs[1], memory.read(op.outputs[1]) + 1)
    memory.run(op, repeat=True)
    assert (memory.content(op.outputs[0]) != y).any()
    assert (memory.content(op.outputs[3]) != mask).any()


def test_a_mask_takes_a_bit_of_a_blocked_element_and_a_byte_of_a_plain_one():
    block = BACKEND._engine.block
    for layers, nbytes in (
        ((Conv2d(block + 1, 1), BatchNorm2d(), ReLU()), 3 * 2 * block * 64 // 8),
        ((BatchNorm2d(), ReLU()), 3 * 3 * 64),
    ):
        graph = lower(training(Sequential(*layers, *END)), BACKEND)
        (mask,) = (t for t in graph.tensors if t.name.endswith(".mask"))
        assert mask.nbytes == nbytes
        assert mask.layout.startswith("mask")


SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1.0, -1.0], np.float32)


@pytest.mark.parametrize("blocked", [True, False])
def test_sums_of_numbers_that_are_none(blocked):
    """A ReLU hands NaN on, of its own or fused, makes NaN of −∞, and no zero of the other sign."""
    layers = (*([Conv2d(9, 1)] if blocked else []), Branches(Identity(), Tanh(), merge=Add()), ReLU(), Tanh())
    plain = prediction_graph(forward_graph(Sequential(*layers), (2, 9, 9, 1)))
    found = []
    for graph in (lower(plain, BACKEND), unfused(plain)):
        memory = Memory(graph, BACKEND)
        place = next(i for i, op in enumerate(graph.ops) if op.kind.startswith("add"))
        a, b = graph.ops[place].inputs
        memory.write(a, np.broadcast_to(SPECIAL[:, None, None], (2, 9, 9, 1)))
        memory.write(b, np.broadcast_to(SPECIAL[:, None], (2, 9, 9, 1)))
        for op in graph.ops[place : place + (1 if graph.ops[place].kind == "add_relu" else 2)]:
            memory.run(op)
        found.append(memory.read(op.outputs[0]))
    with np.errstate(invalid="ignore"):
        sums = (SPECIAL[:, None] + SPECIAL)[:, :, None]
    expected = np.where(np.isneginf(sums), np.nan, np.maximum(sums, 0))
    ours, apart = found
    np.testing.assert_array_equal(ours, apart)
    np.testing.assert_allclose(ours[0], expected, atol=1e-38)
    assert not np.signbit(ours[~np.isnan(ours)]).any()


# Plans


UNUSUAL = {
    "channels that fill no block": Sequential(
        Conv2d(10, 3, padding=1), BatchNorm2d(), ReLU(), Conv2d(20, 3, groups=5), ReLU(), MaxPool2d(2), *END
    ),
    "images read by everything": Sequential(
        Branches(Identity(), Sequential(BatchNorm2d(), ReLU()), Sequential(Conv2d(5, 1), ReLU())), Conv2d(4, 3), *END
    ),
    "residual blocks": Sequential(
        Conv2d(12, 3),
        *[
            Residual(
                Sequential(Conv2d(6, 1), BatchNorm2d(), ReLU(), Conv2d(12, 3, padding=1), BatchNorm2d()), None, ReLU()
            )
            for _ in range(3)
        ],
        *END,
    ),
}


def steps(graph, strategy, budget=None):
    """Losses and digest of the weights after three steps; without a budget in as few bytes as possible."""
    case = Problem(graph, estimate(graph, BACKEND), Kernels.FIXED, lay_out_state(graph))
    if budget is None:
        with pytest.raises(BudgetError) as refused:
            make_plan(case, strategy, 1)
        budget = refused.value.least_bytes
    plan = make_plan(case, strategy, budget)
    with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
        arena.poison(0xFF, 0, plan.peak_bytes)
        state = State(graph, case.state, BACKEND, device)
        state.initialize(5)
        executor = Executor(plan, graph, BACKEND, device)
        executor.bind()
        losses = []
        for step in range(3):
            rng = np.random.default_rng(step)
            feeds = {
                "images": rng.normal(size=SHAPE).astype(np.float32),
                "labels": rng.integers(0, 7, SHAPE[0]),
                "scalars": np.array([0.05, 1.0]),
                "random_key": np.array([11, step], np.int64),
            }
            losses.append(executor.run(feeds)["loss"].tobytes())
        return losses, state.weights_sha256(), sum(s.recompute for s in plan.steps)


@pytest.mark.parametrize("key", [*range(10), *UNUSUAL])
def test_three_steps_give_the_bits_of_the_unfused_graph_in_any_memory(key):
    plain = training(UNUSUAL[key] if key in UNUSUAL else random_network(key))
    *exact, _ = steps(unfused(plain), "keep", 2**40)
    graph = lower(plain, BACKEND)
    for strategy, budget in (("keep", 2**40), ("liveness", 2**40), ("chain", None)):
        *found, _ = steps(graph, strategy, budget)
        assert found == exact


def test_masks_were_made_again():
    assert steps(lower(training(UNUSUAL["residual blocks"]), BACKEND), "chain")[2] > 0


PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location('tests_here', sys.argv[1])
tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tests)
assert tests.BACKEND._engine.block == 8, tests.BACKEND._engine.block
for channels in (5, 16):
    for blocked in (True, False):
        tests.test_fused_operations_give_the_results_of_those_apart(channels, blocked, (7, 9), True)
tests.test_a_mask_takes_a_bit_of_a_blocked_element_and_a_byte_of_a_plain_one()
tests.test_sums_of_numbers_that_are_none(True)
"""


def test_a_machine_without_avx_512():
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-c", PROGRAM, __file__]
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[4], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
