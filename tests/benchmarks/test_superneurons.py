"""The SuperNeurons paper's figures by its own rules, against the paper and against a replay that knows no lifetimes."""

import dataclasses

import pytest

from bathyal.layers import (
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Conv2d,
    Dropout,
    Flatten,
    Identity,
    Linear,
    MaxPool2d,
    ReLU,
    Residual,
    Sequential,
    forward_graph,
)
from bathyal.layers.merge import Add, Concat
from bathyal.layers.slabs import split_large
from bathyal.memory.errors import GraphError
from bathyal.models.registry import MODELS, build_model
from bathyal.scheduler.offload.recompute import Recomputation
from bathyal.scheduler.plan.steps import NO_TENSOR
from bathyal.scheduler.planner import make_plan
from benchmarks.superneurons.accounting import activation_peak, baseline_bytes, layer_order, live_bytes, peak
from benchmarks.superneurons.figures import list_figures
from benchmarks.superneurons.layers import CHEAP, CHECKPOINTS, IMAGES, NO_VALUE, LayerKind, Step, paper_network
from benchmarks.superneurons.recompute import largest_layer_bytes, paper_order, recomputations, segments
from tests.support.random_networks import random_network, random_problem

MIB = 2**20
SEEDS = range(30)
SPEED, MEMORY, COST = Recomputation.SPEED_CENTRIC, Recomputation.MEMORY_CENTRIC, Recomputation.COST_AWARE


def of_paper(name, batch):
    return paper_network(forward_graph(build_model(name, variant="paper"), (batch, 3, 227, 227)))


@pytest.fixture(scope="module")
def alexnet():
    return of_paper("alexnet", 200)


def mebibytes(nbytes):
    return round(nbytes / MIB, 3)


def where(network, at):
    return network.layers[at.step.layer].name, at.step.backward


def test_alexnet_has_23_layers_and_46_steps(alexnet):
    assert len(alexnet.layers) == 23
    assert len(layer_order(alexnet)) == 46
    assert alexnet.layers[-1].kind is LayerKind.SOFTMAX
    assert len({layer.op for layer in alexnet.layers}) == 23


def test_alexnet_s_baseline_and_liveness_are_the_paper_s(alexnet):
    order = layer_order(alexnet)
    assert round(baseline_bytes(alexnet) / MIB, 4) == 2189.4371
    forward = sum(alexnet.nbytes(t) for layer in alexnet.layers for t in layer.outputs)
    assert mebibytes(forward) == 1469.592
    assert mebibytes(baseline_bytes(alexnet) - forward) == 719.845
    at = peak(alexnet, order)
    assert round(at.nbytes / MIB, 4) == 1489.3555
    assert where(alexnet, at) == ("pool5", True)


def test_alexnet_s_offloading_is_as_recomputed_and_near_the_paper_s_1132_155(alexnet):
    order = layer_order(alexnet)
    at = peak(alexnet, order, offload=True)
    assert mebibytes(at.nbytes) == 1132.056
    assert where(alexnet, at) == ("pool2", True)
    assert mebibytes(peak(alexnet, order, offload=True, prefetch=False).nbytes) == 1012.329


def test_alexnet_s_recomputation_is_the_paper_s(alexnet):
    orders = {mode: paper_order(alexnet, mode) for mode in Recomputation}
    peaks = {mode: mebibytes(peak(alexnet, order, offload=True).nbytes) for mode, order in orders.items()}
    assert {mode: recomputations(alexnet, order) for mode, order in orders.items()} == {SPEED: 14, MEMORY: 23, COST: 17}
    assert peaks == {SPEED: 993.018, MEMORY: 886.230, COST: 886.230}
    (norm1,) = (layer for layer in alexnet.layers if layer.name == "norm1")
    assert peak(alexnet, orders[COST], offload=True).nbytes == 4 * alexnet.nbytes(norm1.outputs[0])
    assert largest_layer_bytes(alexnet) == 4 * alexnet.nbytes(norm1.outputs[0])


@pytest.mark.parametrize(("name", "runs"), [("resnet50", (84, 118, 85)), ("resnet101", (169, 237, 170))])
def test_residual_networks_recomputation_is_the_paper_s(name, runs):
    network = of_paper(name, 32)
    orders = [paper_order(network, mode) for mode in (SPEED, MEMORY, COST)]
    assert tuple(recomputations(network, order) for order in orders) == runs
    at = peak(network, orders[0], offload=True)
    assert at.nbytes == 455.125 * MIB
    assert where(network, at) == ("maxpool", True)
    # The paper's own figure is not known for sure; this is what its rules give.
    assert [peak(network, order, offload=True).nbytes / MIB for order in orders[1:]] == [416.5, 416.5]
    assert [peak(network, order, offload=True, prefetch=False).nbytes / MIB for order in orders[1:]] == [406.125] * 2
    assert largest_layer_bytes(network) == 406.125 * MIB


def test_only_the_stem_of_a_residual_network_is_recomputed_for_each_step():
    network = of_paper("resnet50", 32)
    fast, aware = (paper_order(network, mode) for mode in (SPEED, COST))
    stem = [step.layer for step in segments(network)[0]]
    assert [network.layers[layer].name for layer in stem] == ["bn1", "relu", "maxpool"]
    for order, runs in ((fast, 3), (aware, 4)):
        assert sum(not step.backward and step.layer in stem for step in order) - len(stem) == runs
    rest = [[step for step in order if step.layer not in stem] for order in (fast, aware)]
    assert rest[0] == rest[1]


@pytest.mark.parametrize("name", ["alexnet", "resnet50"])
def test_our_plans_take_no_more_than_the_paper_where_both_have_the_same_means(name):
    rows = {row.stage: row for row in list_figures(name)}
    for stage in ("liveness", *(mode.value for mode in Recomputation)):
        row = rows[stage]
        assert row.ours_mib <= row.reproduced_mib
        assert row.paper_mib is None or abs(row.reproduced_mib - row.paper_mib) < 0.001
        assert row.paper_runs is None or row.reproduced_runs == row.paper_runs
    if name == "alexnet":
        # Without recomputation ours is below what the paper reaches by all its means.
        assert rows["liveness"].ours_mib < 886.23
        assert mebibytes(rows["cost-aware"].ours_mib * MIB) == 664.673


def random_layers(seed):
    return paper_network(forward_graph(random_network(seed), (3, 3, 8, 8)))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_tensor_has_one_maker_and_one_reader(seed):
    network = random_layers(seed)
    made = [t for layer in network.layers for t in layer.outputs]
    read = [t for layer in network.layers for t in layer.inputs]
    softmax = network.layers[-1].outputs
    assert len(set(made)) == len(made)
    assert len(set(read)) == len(read)
    assert {*made, IMAGES} == {*read, *softmax}
    assert [layer.id for layer in network.layers] == list(range(len(network.layers)))


def replay(network, order, offload=False, prefetch=False):
    """Bytes at each step by looking around each time: a value stays while a later step reads it before it is remade."""
    operands = [network.operands(step) for step in order]
    turn = [step.backward for step in order].index(True)
    layers = [network.layers[step.layer] for step in order]
    checkpoints = {t for layer in network.layers if layer.kind in CHECKPOINTS for t in layer.outputs}
    there, total = set(), []

    def away(value, position):
        """Whether the forward pass is done with it, and the backward pass does not need it yet."""
        uses = [p for p, o in enumerate(operands) if value in o.reads or value in o.makes]
        before, after = max(p for p in uses if p < turn), min((p for p in uses if p >= turn), default=len(order))
        if prefetch:
            hides = [p for p in range(turn, after) if order[p].backward and layers[p].kind in CHECKPOINTS]
            after = max(hides, default=after)
        return before < position < after

    def wanted(value, after):
        for later in operands[after:]:
            if value in later.reads:
                return True
            if value in later.makes:
                return False
        return False

    for position, now in enumerate(operands):
        assert all(value in there or value == IMAGES for value in now.reads), "a step reads what is not there"
        held = (there | set(now.makes)) - ({now.overwritten} if now.overwritten != NO_VALUE else set())
        here = {v for v in held if not (offload and v in checkpoints and away(v, position))}
        total.append(sum(map(network.nbytes, here)))
        there = {value for value in held if wanted(value, position + 1)}
    return total


def orders(network):
    return [layer_order(network), *(paper_order(network, mode) for mode in Recomputation)]


@pytest.mark.parametrize("seed", SEEDS)
def test_live_bytes_are_those_of_a_replay(seed):
    network = random_layers(seed)
    for order in orders(network):
        assert live_bytes(network, order) == replay(network, order)
        for prefetch in (False, True):
            moved = live_bytes(network, order, offload=True, prefetch=prefetch)
            assert moved == replay(network, order, offload=True, prefetch=prefetch)


@pytest.mark.parametrize("seed", SEEDS)
def test_orders_run_every_layer_once_each_way_and_only_cheap_ones_again(seed):
    network = random_layers(seed)
    natural, *again = orders(network)
    for order in again:
        assert [step for step in order if step.backward] == [step for step in natural if step.backward]
        assert order[: len(network.layers)] == natural[: len(network.layers)]
        assert {network.layers[step.layer].kind for step in order[len(network.layers) :] if not step.backward} <= CHEAP
    speed, memory, aware = (recomputations(network, order) for order in again)
    assert speed <= aware <= memory


@pytest.mark.parametrize("seed", SEEDS)
def test_each_mechanism_takes_no_more_than_the_one_before(seed):
    network = random_layers(seed)
    order = layer_order(network)
    at_need = peak(network, order, offload=True, prefetch=False).nbytes
    peaks = [at_need, peak(network, order, offload=True).nbytes, peak(network, order).nbytes, baseline_bytes(network)]
    assert peaks == sorted(peaks)


@pytest.mark.parametrize("seed", SEEDS)
def test_segments_are_runs_of_cheap_layers_between_others(seed):
    network = random_layers(seed)
    runs = [[step.layer for step in run] for run in segments(network)]
    assert sorted(layer for run in runs for layer in run) == [x.id for x in network.layers if x.kind in CHEAP]
    makers = {t: layer for layer in network.layers for t in layer.outputs}
    for run in runs:
        first, *others = (network.layers[layer] for layer in run)
        assert first.inputs[0] == IMAGES or makers[first.inputs[0]].kind not in CHEAP
        assert all(
            layer.inputs[0] == network.layers[before].outputs[0] for before, layer in zip(run, others, strict=False)
        )


def kinds(*layers):
    return [layer.kind.value for layer in paper_network(forward_graph(Sequential(*layers), (2, 3, 8, 8))).layers]


def test_forks_joins_and_concatenations_are_layers_and_flatten_is_none():
    end = ("fc", "softmax")
    assert kinds(Residual(Conv2d(3, 1)), Flatten(), Linear(4)) == ["fork", "conv", "join", *end]
    branches = Branches(ReLU(), Identity(), Conv2d(3, 1), merge=Add())
    assert kinds(Dropout(), branches, Flatten(), Linear(4)) == [
        *("dropout", "fork", "act", "conv", "join", "join"),
        *end,
    ]
    branches = Branches(MaxPool2d(2), AvgPool2d(2), merge=Concat())
    assert kinds(BatchNorm2d(), branches, Flatten(), Linear(4)) == ["bn", "fork", "pool", "pool", "concat", *end]


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"resnet1001", "resnet2500", "preact_resnet1001"}))
def test_every_bundled_network_can_be_counted(name):
    entry = MODELS[name]
    network = paper_network(forward_graph(build_model(name), (1, entry.channels, entry.image_side, entry.image_side)))
    assert peak(network, layer_order(network)).nbytes < baseline_bytes(network)


def test_a_batch_norm_that_only_a_join_reads_is_not_computed_again():
    block = Residual(Sequential(Conv2d(3, 1), BatchNorm2d()), activation=ReLU())
    network = paper_network(forward_graph(Sequential(block, Flatten(), Linear(4)), (2, 3, 8, 8)))
    (norm,) = (layer.id for layer in network.layers if layer.kind is LayerKind.BN)
    for mode in Recomputation:
        assert paper_order(network, mode).count(Step(norm, backward=False)) == 1


def test_mistakes_are_refused():
    graph = forward_graph(Sequential(Conv2d(4, 1), ReLU(), Flatten(), Linear(4)), (2, 3, 8, 8))
    unknown = dataclasses.replace(graph.ops[1], kind="gelu")
    with pytest.raises(GraphError, match="gelu"):
        paper_network(dataclasses.replace(graph, ops=(graph.ops[0], unknown, *graph.ops[2:])))
    with pytest.raises(GraphError, match="nothing reads"):
        paper_network(dataclasses.replace(graph, outputs=graph.ops[1].outputs))


def test_weights_in_slabs_are_counted_as_a_fork_and_a_concatenation():
    graph = split_large(forward_graph(Sequential(Flatten(), Linear(8)), (2, 3, 8, 8)), 192 * 4 * 4)
    names = [layer.kind.value for layer in paper_network(graph).layers]
    assert names == ["fork", "fc", "fc", "concat", "softmax"]


def union_of_addresses(plan, counted):
    """At each step the union of the bytes of the counted instances."""
    most = 0
    for position in range(len(plan.steps)):
        end = total = 0
        for first, last in sorted(
            (i.address, i.address + i.nbytes)
            for i in plan.instances
            if i.birth <= position <= i.death and i.tensor in counted
        ):
            total += max(0, last - max(first, end))
            end = max(end, last)
        most = max(most, total)
    return most


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("strategy", ["liveness", "chain"])
def test_activations_of_our_plans_are_counted_once_for_each_byte(seed, strategy):
    problem = random_problem(seed)
    plan = make_plan(problem, strategy, 2**40)
    plan = make_plan(problem, strategy, plan.min_budget_bytes)
    updates = {t for op in problem.graph.ops if op.kind == "sgd_update" for t in op.inputs}
    counted = {
        t.id for t in problem.graph.tensors if t.role.value in ("activation", "gradient") and t.id not in updates
    }
    assert NO_TENSOR not in counted
    assert activation_peak(plan, problem.graph) == union_of_addresses(plan, counted)
