"""Lifetimes and shared memory of single orders, on graphs that are small enough to know the answer."""

import pytest

import bathyal.scheduler.layout.lifetimes
from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.lowering import lower
from bathyal.layers import (
    SGD,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    ReLU,
    Sequential,
    Tanh,
    forward_graph,
    training_graph,
)
from bathyal.layers.activation import RELU
from bathyal.layers.graph import Graph, Op, Phase, Role, Tensor
from bathyal.layers.initializers import Uniform
from bathyal.layers.linear import LINEAR
from bathyal.layers.modes import prediction_graph
from bathyal.layers.operations import OpKind
from bathyal.memory.errors import BudgetError
from bathyal.scheduler.blocks.cut import split_blocks
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.lifetimes import drop_dead_recomputations, find_lifetimes
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.costs import CostTable, KernelCost
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import make_plan


class ReadAfterwards(Layer):
    """A linear layer whose output is also read, last of all, by an operation that nobody listens to."""

    def build(self, builder, x):
        y = builder.add(Linear(5), x, "linear")
        builder.add(ReLU(), y, "unheard")
        return y


class SharedWeight(Layer):
    """The same weight three times."""

    def build(self, builder, x):
        features = builder.spec(x).shape[1]
        weight = builder.parameter("weight", (features, features), Uniform())
        for turn in range(3):
            with builder.scope(f"turn{turn}"):
                x = builder.apply(RELU, (builder.apply(LINEAR, (x, weight)),))
        return x


def no_workspace(op):
    return 0, 0


def problem_of(graph):
    costs = CostTable(tuple((KernelCost("only", 0, 1.0),) for _ in graph.ops))
    return Problem(graph, costs, Kernels.FIXED, lay_out_state(graph))


def test_an_output_of_the_graph_is_not_overwritten_by_the_last_operation():
    graph = lower(prediction_graph(forward_graph(ReadAfterwards(), (2, 3))), NullBackend())
    lifetimes = find_lifetimes(graph, range(len(graph.ops)), no_workspace)
    (output,) = (n for n, t in enumerate(lifetimes.tensor) if t == graph.outputs[0])
    (unheard,) = (n for n, t in enumerate(lifetimes.tensor) if graph.tensors[t].name == "unheard.relu")
    assert lifetimes.buffer[output] != lifetimes.buffer[unheard]
    plan = make_plan(problem_of(graph), "liveness", 2**30)
    assert plan.instances[output].address != plan.instances[unheard].address


def test_what_is_needed_after_a_pass_is_not_overwritten_by_its_last_operation():
    graph = lower(training_graph(forward_graph(Sequential(Flatten(), Linear(4)), (2, 3)), SGD()), NullBackend())
    images = graph.with_role(Role.INPUT)[0].id
    kept = find_lifetimes(graph, [0], no_workspace, present=[images], final=[images, graph.ops[0].outputs[0]])
    assert kept.live_bytes().tolist() == [128]
    let_go = find_lifetimes(graph, [0], no_workspace, present=[images], final=[graph.ops[0].outputs[0]])
    assert let_go.live_bytes().tolist() == [64]


def test_elementwise_operations_take_over_memory_only_where_the_input_ends():
    network = Sequential(Flatten(), Linear(4), ReLU(), Tanh(), Linear(4))
    graph = lower(training_graph(forward_graph(network, (2, 3)), SGD()), NullBackend())
    lifetimes = find_lifetimes(graph, range(len(graph.ops)), no_workspace)
    buffer = {graph.tensors[t].name: lifetimes.buffer[n] for n, t in enumerate(lifetimes.tensor)}
    # Nobody reads the first product again, while the gradient of ReLU reads its output.
    assert buffer["1.linear"] == buffer["2.relu"]
    assert buffer["2.relu"] != buffer["3.tanh"]
    apart = find_lifetimes(graph, range(len(graph.ops)), no_workspace, share=False)
    assert apart.buffer == list(range(len(apart.buffer)))
    assert apart.live_bytes().max() >= lifetimes.live_bytes().max()


def graph_of(roles, *ops, sizes=None):
    """Tensors of the given roles, and operations given as (kind, inputs, outputs)."""
    sizes = sizes or [64] * len(roles)
    tensors = (Tensor(n, f"t{n}", (16,), "float32", role, sizes[n]) for n, role in enumerate(roles))
    made = (Op(n, kind, f"op{n}", inputs, outputs, forward_op=n) for n, (kind, inputs, outputs) in enumerate(ops))
    return Graph("by hand", tuple(tensors), tuple(made), (), len(ops))


@pytest.mark.parametrize(
    ("role", "shared"),
    [(Role.ACTIVATION, True), (Role.INPUT, True)]
    + [(role, False) for role in (Role.SCALARS, Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER)],
)
def test_whose_memory_an_output_may_reuse(role, shared):
    graph = graph_of([role, Role.ACTIVATION], ("relu", (0,), (1,)))
    lifetimes = find_lifetimes(graph, [0], no_workspace, present=[0])
    assert (lifetimes.buffer == [0, 0]) == shared


def test_memory_of_another_size_is_not_reused():
    graph = graph_of([Role.INPUT, Role.ACTIVATION], ("relu", (0,), (1,)), sizes=[64, 128])
    assert find_lifetimes(graph, [0], no_workspace).buffer == [0, 1]


def test_memory_of_an_input_is_reused_once(monkeypatch):
    """Two inputs that end offer theirs to one output, which takes the first; two outputs never take the same."""
    graph = graph_of([Role.INPUT, Role.INPUT, Role.ACTIVATION], ("add", (0, 1), (2,)))
    assert find_lifetimes(graph, [0], no_workspace).buffer == [0, 1, 0]
    kinds = {"twice": OpKind("twice", inplace=((0, 0), (1, 0))), "both": OpKind("both", inplace=((0, 0),), kept=(0,))}
    for module in (bathyal.scheduler.layout.lifetimes, bathyal.layers.kinds):
        monkeypatch.setattr(module, "KINDS", kinds)
    graph = graph_of([Role.INPUT, Role.ACTIVATION, Role.ACTIVATION], ("twice", (0,), (1, 2)))
    assert find_lifetimes(graph, [0], no_workspace).buffer == [0, 0, 2]
    graph = graph_of([Role.INPUT, Role.ACTIVATION], ("both", (0,), (1,)))
    lifetimes = find_lifetimes(graph, [0, 0], no_workspace)
    assert lifetimes.buffer == [0, 1], "what is kept was there before the second run"


def test_kept_outputs_live_until_the_last_run_that_reads_them(monkeypatch):
    for module in (bathyal.scheduler.layout.lifetimes, bathyal.layers.kinds):
        monkeypatch.setattr(module, "KINDS", {"keeps": OpKind("keeps", kept=(1,))})
    graph = graph_of([Role.INPUT, Role.ACTIVATION, Role.ACTIVATION], ("keeps", (0,), (1, 2)))
    lifetimes = find_lifetimes(graph, [0, 0, 0], no_workspace)
    assert lifetimes.tensor == [0, 1, 2, 1, 1]
    assert [s.outputs for s in lifetimes.steps] == [(1, 2), (3, 2), (4, 2)]
    assert (lifetimes.birth[2], lifetimes.death[2]) == (0, 2)


def test_a_repeated_run_is_left_out_only_where_nobody_reads_what_it_makes():
    network = Sequential(Conv2d(4, 1, name="a"), ReLU(name="r"), Conv2d(4, 1, name="b"), Flatten(), Linear(3))
    graph = lower(training_graph(forward_graph(network, (2, 3, 2, 2)), SGD()), NullBackend())
    forward = [op.id for op in graph.ops if op.phase is Phase.FORWARD]
    rest = [op.id for op in graph.ops if op.phase is not Phase.FORWARD]
    # The output of `b` is read by the backward pass of nothing but Flatten, which reads no value.
    again = drop_dead_recomputations(graph, [*forward, *forward[:3], *rest])
    assert again == [*forward, *forward[:2], *rest]
    assert drop_dead_recomputations(graph, [*forward, *forward[:2], *forward[:2], *rest]) == again
    assert drop_dead_recomputations(graph, [*forward, *rest]) == [*forward, *rest]


def test_a_batch_norm_is_not_repeated_for_its_statistics():
    network = Sequential(Conv2d(4, 1, name="a"), BatchNorm2d(name="b"), Tanh(), Flatten(), Linear(3))
    graph = lower(training_graph(forward_graph(network, (2, 3, 2, 2)), SGD()), NullBackend())
    order = [op.id for op in graph.ops]
    convolution, norm = order[:2]
    assert graph.ops[norm].kind == "batch_norm_training"
    loss = next(op.id for op in graph.ops if op.phase is Phase.LOSS)
    # The gradient reads the input of the batch norm, its mean and its variance, but not its output.
    repeated = [*order[:loss], convolution, norm, *order[loss:]]
    assert drop_dead_recomputations(graph, repeated) == [*order[:loss], convolution, *order[loss:]]


@pytest.mark.parametrize("strategy", ["keep", "liveness", "chain", "auto", "sequential", "revolve"])
def test_operations_that_share_a_parameter_share_a_block(strategy):
    network = Sequential(Linear(6, name="first"), SharedWeight(name="shared"), Linear(3, name="last"))
    graph = lower(training_graph(forward_graph(network, (2, 5)), SGD(0.1, momentum=0.9)), NullBackend())
    blocks = {op.block for op in graph.ops if op.name.startswith("shared")}
    assert len(blocks) == 1
    assert len(split_blocks(graph)) == 4
    problem = problem_of(graph)
    with pytest.raises(BudgetError) as refused:
        make_plan(problem, strategy, 1)
    assert make_plan(problem, strategy, refused.value.least_bytes).peak_bytes == refused.value.least_bytes
