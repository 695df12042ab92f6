"""Where a graph is cut into blocks: networks whose single tensors cross before what is cheap, and what that costs."""

import random

import pytest

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.layers import (
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    Identity,
    Linear,
    MaxPool2d,
    ReLU,
    Residual,
    Sequential,
    forward_graph,
    training_graph,
)
from bathyal.layers.graph import Phase, Role
from bathyal.layers.kinds import KINDS
from bathyal.layers.merge import Add
from bathyal.scheduler.blocks import cut
from bathyal.scheduler.blocks.cut import assign_blocks, split_blocks
from bathyal.scheduler.blocks.model import count_background_bytes
from bathyal.scheduler.planner import StrategyPlanner, make_plan
from tests.support.network_runs import OPTIMIZER, PLENTY, least_bytes, problem, run_on_host
from tests.support.onednn_library import onednn_backend

BACKENDS = [NullBackend, onednn_backend]
SMALL_SHAPE = (2, 3, 4, 4)


def activate(channels, kernel=3, groups=1):
    """Batch norm, ReLU and a convolution behind them."""
    convolution = Conv2d(channels, kernel, padding=kernel // 2, groups=groups, bias=False)
    return BatchNorm2d(), ReLU(), convolution


def preactivation_unit(channels):
    return Residual(Sequential(*activate(channels), *activate(channels)))


def last_unit(channels):
    first, second = (Conv2d(channels, 3, padding=1) for _ in range(2))
    return Residual(Sequential(first, BatchNorm2d(), ReLU(), second, BatchNorm2d()), activation=ReLU())


def dense_layer(growth):
    return Branches(Identity(), Sequential(*activate(4 * growth, 1), *activate(growth)))


def inverted_unit(channels):
    wide = 3 * channels
    depthwise = Conv2d(wide, 3, padding=1, groups=wide, bias=False)
    ends = Conv2d(wide, 1, bias=False), Conv2d(channels, 1, bias=False)
    body = ends[0], BatchNorm2d(), ReLU(), depthwise, BatchNorm2d(), ReLU(), ends[1], BatchNorm2d()
    return Residual(Sequential(*body))


def u_shape(channels, depth):
    """What enters goes around an inner half, which works on what a pooling makes of it."""
    inner = [MaxPool2d(3, 1, 1), Conv2d(channels, 3, padding=1), ReLU()]
    inner += [u_shape(channels, depth - 1)] if depth > 1 else []
    inner += [Conv2d(channels, 3, padding=1), ReLU()]
    first = Conv2d(channels, 3, padding=1), ReLU()
    return Sequential(*first, Branches(Identity(), Sequential(*inner)), Conv2d(channels, 1), ReLU())


def close(*layers):
    return Sequential(Conv2d(8, 3, padding=1), *layers, BatchNorm2d(), ReLU(), GlobalAvgPool2d(), Flatten(), Linear(7))


def random_fork(seed, count=5):
    """A network of parts around which something goes."""
    rng = random.Random(seed)
    parts = []
    for _ in range(count):
        match rng.randrange(6):
            case 0:
                parts.append(Sequential(Conv2d(8, 1), preactivation_unit(8), preactivation_unit(8)))
            case 1:
                parts.append(Sequential(dense_layer(2), dense_layer(2), dense_layer(2)))
            case 2:
                parts.append(Sequential(Conv2d(6, 1), inverted_unit(6), Dropout(0.2), inverted_unit(6)))
            case 3:
                parts.append(u_shape(6, rng.randint(1, 2)))
            case 4:
                merge = Branches(Conv2d(8, 1), Sequential(*activate(8), *activate(8)), merge=Add())
                parts.append(Sequential(BatchNorm2d(), ReLU(), merge, Dropout(0.3)))
            case _:
                parts.append(Sequential(*activate(8), AvgPool2d(3, 1, 1), Residual(Sequential(ReLU(), *activate(8)))))
    return close(*parts)


def count_blocks(network, shape=(2, 3, 8, 8)):
    return len(split_blocks(assign_blocks(training_graph(forward_graph(network, shape), OPTIMIZER)))) - 1


def count_ideal_bytes(case):
    """State, the largest block with all that it touches, and a few boundaries: what a chain of the blocks needs."""
    graph, blocks = case.graph, split_blocks(case.graph)
    sizes = [t.nbytes if t.role in (Role.ACTIVATION, Role.GRADIENT) else 0 for t in graph.tensors]
    touched = [
        {t for op in (*block.forward, *block.backward) for t in (*graph.ops[op].inputs, *graph.ops[op].outputs)}
        for block in blocks
    ]
    boundaries = sorted(graph.tensors[block.input].nbytes for block in blocks)
    return count_background_bytes(graph) + max(sum(sizes[t] for t in ids) for ids in touched) + sum(boundaries[-4:])


DEEP = {
    "activation first": lambda: [preactivation_unit(8) for _ in range(8)],
    "dense": lambda: [dense_layer(2) for _ in range(6)],
    "inverted": lambda: [inverted_unit(8) for _ in range(8)],
}


@pytest.mark.parametrize("kind", DEEP)
def test_a_deep_network_is_cut_between_its_units(kind):
    assert count_blocks(close(*DEEP[kind]())) >= 4


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("kind", DEEP)
def test_a_deep_network_trains_in_its_largest_block_and_a_few_boundaries(kind, make):
    case = problem(close(*DEEP[kind]()), make(), shape=(3, 3, 8, 8))
    assert least_bytes(case, "chain") <= count_ideal_bytes(case)


@pytest.mark.parametrize("make", BACKENDS)
def test_activation_first_needs_no_more_than_activation_last(make):
    """One tensor more, which the gradient of the batch norm that reads a sum makes; at half it takes hardly longer."""
    twin = problem(close(Conv2d(16, 1), *[last_unit(16) for _ in range(27)]), make(), shape=(8, 3, 16, 16))
    case = problem(close(Conv2d(16, 1), *[preactivation_unit(16) for _ in range(27)]), make(), shape=(8, 3, 16, 16))
    free = make_plan(case, "liveness", PLENTY)
    state = count_background_bytes(case.graph)
    activations = free.peak_bytes - state
    least = least_bytes(case, "chain") - state
    assert least <= 1.4 * (least_bytes(twin, "chain") - count_background_bytes(twin.graph))
    assert least < 0.1 * activations
    half = make_plan(case, "chain", state + activations // 2)
    assert half.predicted_seconds <= 1.1 * free.predicted_seconds


def test_densenet_trains_in_a_fifth_of_its_activations():
    """DenseNet-BC with growth rate 12 and six layers in each of its three blocks, for 32² images."""
    layers, channels = [], 24
    for number in range(3):
        layers += [dense_layer(12) for _ in range(6)]
        channels += 72
        if number < 2:
            channels //= 2
            layers += [*activate(channels, 1), AvgPool2d(2)]
    case = problem(
        Sequential(Conv2d(24, 3, padding=1, bias=False), *close(*layers).layers[1:]),
        NullBackend(),
        shape=(4, 3, 32, 32),
    )
    state = count_background_bytes(case.graph)
    activations = make_plan(case, "liveness", PLENTY).peak_bytes - state
    assert least_bytes(case, "chain") - state < 0.2 * activations


def test_a_block_that_the_search_knows_whole_stays_whole():
    """Its input need not be kept while the inner half of a U-Net goes backward; that of a block of its own must be."""
    assert count_blocks(close(u_shape(8, 1))) == count_blocks(close(Conv2d(8, 1), Conv2d(8, 1)))


@pytest.mark.parametrize("seed", [1])
def test_more_cuts_never_raise_the_least(seed, monkeypatch):
    network = random_fork(seed, 2)
    least = least_bytes(problem(network, NullBackend(), shape=SMALL_SHAPE), "chain")
    monkeypatch.setattr(cut, "MOST_DROPPABLE", 10**9)
    before = problem(network, NullBackend(), shape=SMALL_SHAPE)
    assert least <= least_bytes(before, "chain")


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("seed", range(10))
def test_one_tensor_goes_into_a_block_and_one_gradient_out(seed, make):
    graph = problem(random_fork(seed), make()).graph
    home = {t: op.block for op in graph.ops for t in op.outputs}
    blocks = split_blocks(graph)
    for block in blocks[:-1]:
        assert any(KINDS[graph.ops[op].kind].heavy for op in block.forward)
        assert not KINDS[graph.ops[block.forward[-1]].kind].converts
    for op in graph.ops:
        for t in op.inputs:
            role = graph.tensors[t].role
            if home.get(t, op.block) == op.block:
                continue
            if role is Role.ACTIVATION:
                assert t == blocks[op.block].input
            if role is Role.GRADIENT and op.phase is not Phase.UPDATE:
                assert t == blocks[home[t]].gradient and home[t] == op.block + 1


@pytest.mark.parametrize("seed", range(3))
def test_no_strategy_changes_a_bit(seed):
    backend = ReferenceBackend()
    case = problem(random_fork(seed, 2), backend, shape=SMALL_SHAPE)
    expected = run_on_host(case, make_plan(case, "keep", PLENTY), backend, steps=2).bits
    for strategy in ("chain", "sequential", "revolve"):
        planner = StrategyPlanner(case, strategy)
        plan = planner.plan(planner.least_bytes)
        assert plan.recomputed_ops > 0
        assert run_on_host(case, plan, backend, steps=2).bits == expected
