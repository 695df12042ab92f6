"""Operations that a program adds to the package's: two layers of its own, trained under a budget, checked, refused.

`Swish` is element-wise and flat: y = x · sigmoid(slope · x), whose gradient needs a scratch array. `ChannelScale` is
neither, and has a parameter: y[n, c, h, w] = scale[c] · x[n, c, h, w]. All that the tests take from the package is
public, but for the harnesses that compare backends.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.backends.reference.registry import IMPLEMENTATIONS
from bathyal.engine.planning.lowering import lower
from bathyal.layers.kinds import KINDS
from bathyal.memory.arena import Arena
from bathyal.scheduler.planner import make_plan
from tests.support.lowered_graphs import check_operations
from tests.support.network_runs import (
    OPTIMIZER,
    PLENTY,
    SHAPE,
    check_agreement,
    feeds,
    least_plan,
    problem,
    run_on_host,
)
from tests.support.onednn_library import onednn_backend
from tests.support.operation_harness import OperationHarness
from tests.support.own_layers import (
    SWISH,
    SWISH_BACKWARD,
    ChannelScale,
    Swish,
    register_own_layers,
    scale_channels,
    swish,
    swish_backward_kernels,
)

REFERENCE = ReferenceBackend()


NETWORK = bt.Sequential(
    bt.Conv2d(10, 3, padding=1),
    bt.BatchNorm2d(),
    ChannelScale(),
    Swish(1.5),
    bt.Residual(bt.Sequential(bt.Conv2d(10, 3, padding=1), Swish(), bt.Conv2d(10, 1), ChannelScale())),
    bt.Conv2d(6, 3),
    Swish(0.5),
    bt.Dropout(0.2),
    bt.Flatten(),
    bt.Linear(12),
    Swish(),
    bt.Linear(7),
)
"""Layers of both kinds on images and on rows, behind blocked activations whose channels fill no block."""


@pytest.fixture(scope="module", autouse=True)
def operations():
    with register_own_layers():
        yield


@pytest.fixture(scope="module")
def harness():
    with Arena(2**20) as arena:
        yield OperationHarness(REFERENCE, arena)


def backend(name):
    return REFERENCE if name == "reference" else onednn_backend()


class TestGradients:
    """The gradients are those of finite differences in float64, and PyTorch's."""

    def swish(self, harness, x, slope):
        return harness.compute("own_swish", [x], {"slope": slope})[0]

    @pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 3, 5, 4)])
    def test_swish(self, harness, shape):
        rng = np.random.default_rng(0)
        x, dy, v = (rng.standard_normal(shape) for _ in range(3))
        spec = [bt.TensorSpec(shape, "float64")]
        (dx,) = harness.compute("own_swish_backward", [x, dy], {"slope": 1.3}, spec)
        moved = [float(np.sum(self.swish(harness, x + h * v, 1.3) * dy)) for h in (1e-5, -1e-5)]
        assert float(np.sum(dx * v)) == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-7, abs=1e-9)

    def test_channel_scale(self, harness):
        rng = np.random.default_rng(1)
        x, dy, v = (rng.standard_normal((3, 4, 5, 2)) for _ in range(3))
        scale, w = rng.standard_normal(4), rng.standard_normal(4)
        (dx,) = harness.compute("own_channel_scale", [dy, scale])
        (dscale,) = harness.compute("own_channel_scale_weight", [x, dy], {}, [bt.TensorSpec((4,), "float64")])
        moved = [
            float(np.sum(harness.compute("own_channel_scale", [x + h * v, scale + h * w])[0] * dy))
            for h in (1e-5, -1e-5)
        ]
        assert np.sum(dx * v) + np.sum(dscale * w) == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-7)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_pytorch(self, harness, dtype):
        torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
        rng = np.random.default_rng(2)
        x, dy = (3 * rng.standard_normal((2, 3, 5, 4)) for _ in range(2))
        leaf = torch.tensor(x, requires_grad=True)
        theirs = torch.nn.functional.silu(leaf)
        theirs.backward(torch.tensor(dy))
        found = self.swish(harness, x.astype(dtype), 1.0)
        (dx,) = harness.compute(
            "own_swish_backward", [x.astype(dtype), dy.astype(dtype)], {"slope": 1.0}, [bt.TensorSpec(x.shape, dtype)]
        )
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(found, theirs.detach().numpy(), tolerance, tolerance)
        np.testing.assert_allclose(dx, leaf.grad.numpy(), tolerance, tolerance)

    def test_a_whole_step_is_pytorchs(self):
        """Weights after a step in float64, against the gradient of the same function by PyTorch's autograd."""
        torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
        network = bt.Sequential(bt.Conv2d(4, 3), Swish(1.5), ChannelScale(), bt.Flatten(), bt.Linear(7))
        batch = feeds(0)
        images = batch["images"].astype("float64")
        settings = {"device": "reference", "dtype": "float64", "memory": "8 MiB", "optimizer": bt.SGD(0.1)}
        with bt.Trainer(network, SHAPE, **settings) as trainer:
            names = sorted(trainer.state.names())
            before = {name: trainer.state.read(name) for name in names}
            loss = trainer.train_step(images, batch["labels"]).loss
            after = {name: trainer.state.read(name) for name in names}
        leaves = {name: torch.tensor(values, requires_grad=True) for name, values in before.items()}
        x = torch.nn.functional.conv2d(torch.tensor(images), leaves["0.weight"], leaves["0.bias"])
        x = x * torch.sigmoid(1.5 * x) * leaves["2.scale"][:, None, None]
        logits = torch.nn.functional.linear(x.flatten(1), leaves["4.weight"], leaves["4.bias"])
        exact = torch.nn.functional.cross_entropy(logits, torch.tensor(batch["labels"]))
        exact.backward()
        assert loss == pytest.approx(exact.item(), rel=1e-12)
        for name in names:
            np.testing.assert_allclose(after[name], before[name] - 0.1 * leaves[name].grad.numpy(), 1e-10, 1e-13)


class TestBackends:
    def test_every_operation_on_onednn_is_that_of_the_reference(self):
        graph = bt.layers.training_graph(bt.layers.forward_graph(NETWORK, SHAPE), OPTIMIZER)
        met = check_operations(graph, onednn_backend(), feeds(0))
        assert {"own_swish", "own_swish_backward", "own_channel_scale", "own_channel_scale_weight", "convert"} <= set(
            met
        )

    def test_a_flat_operation_takes_blocked_layouts_without_conversions(self):
        layers = (bt.Conv2d(10, 3, padding=1), bt.BatchNorm2d(), Swish(), bt.Conv2d(6, 3), bt.Flatten(), bt.Linear(7))
        graph = problem(bt.Sequential(*layers), onednn_backend()).graph
        for kind in ("own_swish", "own_swish_backward"):
            (op,) = (op for op in graph.ops if op.kind == kind)
            operands = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
            assert len({t.layout for t in operands}) == 1 and operands[0].layout
            assert operands[0].nbytes > operands[0].spec.nbytes  # ten channels are padded
        plain = problem(bt.Sequential(*layers[:2], bt.ReLU(), *layers[3:]), onednn_backend()).graph
        conversions = [sum(op.kind == "convert" for op in g.ops) for g in (graph, plain)]
        assert conversions[0] == conversions[1]

    def test_one_that_is_not_flat_lies_plain(self):
        graph = problem(NETWORK, onednn_backend()).graph
        for op in graph.ops:
            if op.kind.startswith("own_channel_scale"):
                assert all(not graph.tensors[t].layout for t in (*op.inputs, *op.outputs))

    def test_onednn_agrees_with_the_reference(self):
        results = []
        for computing in (onednn_backend(), REFERENCE):
            case = problem(NETWORK, computing)
            least = least_plan(case, "liveness")
            results.append(run_on_host(case, least, computing))
        check_agreement(*results)

    def test_a_flat_update_takes_the_layout_of_what_it_updates_and_another_is_refused(self):
        graph = bt.layers.training_graph(bt.layers.forward_graph(NETWORK, SHAPE), OPTIMIZER)
        kind = bt.OpKind("own_update", flat=True)
        bt.register_operation(kind, lambda *arrays, **attrs: None)
        try:
            ops = tuple(replace(op, kind=kind.name) if op.kind == "sgd_update" else op for op in graph.ops)
            lowered = lower(replace(graph, ops=ops), onednn_backend())
            usual = lower(graph, onednn_backend())
            assert lowered.tensors == usual.tensors
            assert any(t.layout for t in lowered.tensors if t.name.endswith("weight.momentum"))
        finally:
            bt.unregister_operation(kind.name)
        bt.register_operation(replace(kind, flat=False), lambda *arrays, **attrs: None)
        try:
            with pytest.raises(bt.ConfigError, match=r"weight \(own_update\).*declared flat"):
                lower(replace(graph, ops=ops), onednn_backend())
        finally:
            bt.unregister_operation(kind.name)


class TestPlans:
    @pytest.mark.parametrize("name", ["reference", "onednn"])
    @pytest.mark.parametrize("strategy", ["chain", "revolve", "superneurons", "stream"])
    def test_bits_are_those_of_keep_at_the_least_budget(self, name, strategy):
        computing = backend(name)
        case = problem(NETWORK, computing)
        keep = make_plan(case, "keep", PLENTY)
        everything = run_on_host(case, keep, computing)
        plan = least_plan(case, strategy)
        again = {case.graph.ops[step.op].kind for step in plan.runs if step.recompute}
        found = run_on_host(case, plan, computing)
        assert found.bits == everything.bits
        assert found.executor.high_water_bytes == plan.peak_bytes < keep.peak_bytes
        assert {"own_swish", "own_channel_scale"} <= again or strategy not in ("chain", "revolve")

    def test_a_trainer_saves_and_resumes_it(self, tmp_path):
        batch = feeds(0)

        def trainer():
            options = {"optimizer": bt.SGD(0.1, momentum=0.9), "kernels": "fixed", "cache": tmp_path / "cache"}
            return bt.Trainer(NETWORK, SHAPE, memory="1 MiB", **options)

        with trainer() as first:
            first.train_step(batch["images"], batch["labels"])
            first.save(tmp_path / "checkpoints")
            first.train_step(batch["images"], batch["labels"])
            expected = first.state.weights_sha256()
        with trainer() as second:
            assert second.restore(tmp_path / "checkpoints")
            second.train_step(batch["images"], batch["labels"])
            assert second.state.weights_sha256() == expected


def kind(**fields):
    return bt.OpKind("own_refused", lambda inputs, attrs: (inputs[0],), **fields)


REFUSED = [
    ("an OpKind", {}, lambda: (bt.OpKind, swish)),
    ("an OpKind", {}, lambda: ("own_swish", swish)),
    ("letters, digits", {}, lambda: (bt.OpKind("my kind"), swish)),
    ("a name that is not taken", {}, lambda: (bt.OpKind("relu"), swish)),
    ("run to be a function", {}, lambda: (kind(), 3)),
    ("got neither", {}, lambda: (kind(),)),
    ("got both", {"kernels": swish_backward_kernels}, lambda: (kind(), swish)),
    ("kernels to be a function", {"kernels": 3}, lambda: (kind(),)),
    ("backward to be a function", {}, lambda: (kind(backward="own_swish_backward"), swish)),
    ("flops to be a function", {}, lambda: (kind(flops=2.0), swish)),
    ("inplace as pairs", {}, lambda: (kind(inplace=(0, 0)), swish)),
    ("inplace as pairs", {}, lambda: (kind(inplace=((0, -1),)), swish)),
    ("inplace as pairs", {}, lambda: (kind(inplace=((0, 0, 0),)), swish)),
    ("kept as positions", {}, lambda: (kind(kept=(-1,)), swish)),
    ("kept as positions", {}, lambda: (kind(kept=(1, 1)), swish)),
    ("kept outputs that lie over no input", {}, lambda: (kind(inplace=((1, 0),), kept=(1,)), swish)),
    ("flat=True or random=True", {}, lambda: (kind(flat=True, random=True), swish)),
    ("heavy=True or heavy=False", {}, lambda: (kind(heavy=1), swish)),
    ("no kernels", {}, lambda: (kind(training=lambda b, op, x: x[0], evaluation=lambda b, op, x: x[0]), swish)),
]


class TestRefused:
    @pytest.mark.parametrize(("message", "options", "given"), REFUSED, ids=[row[0] for row in REFUSED])
    def test_what_cannot_be_registered_says_why_and_leaves_nothing_behind(self, message, options, given):
        before = dict(KINDS), dict(IMPLEMENTATIONS)
        with pytest.raises(bt.ConfigError) as refused:
            bt.register_operation(*given(), **options)
        assert message in str(refused.value)
        assert (dict(KINDS), dict(IMPLEMENTATIONS)) == before

    def test_a_kind_whose_kernels_are_refused_is_not_left_half_registered(self):
        IMPLEMENTATIONS.add("own_half_there", swish_backward_kernels)
        try:
            with pytest.raises(bt.ConfigError, match="not taken"):
                bt.register_operation(bt.OpKind("own_half_there"), swish)
            assert "own_half_there" not in KINDS
        finally:
            IMPLEMENTATIONS.remove("own_half_there")

    def test_the_same_objects_again_change_nothing_and_others_are_refused(self):
        bt.register_operation(SWISH, swish)
        with pytest.raises(bt.ConfigError, match="not taken"):
            bt.register_operation(SWISH, scale_channels)
        with pytest.raises(bt.ConfigError, match="not taken"):
            bt.register_operation(replace(SWISH, flat=False), swish)
        assert KINDS["own_swish"] is SWISH
        assert IMPLEMENTATIONS["own_swish"].run is swish

    @pytest.mark.parametrize("name", ["relu", "nothing"])
    def test_only_what_was_added_is_removed(self, name):
        with pytest.raises(bt.ConfigError, match="the name of an added one"):
            bt.unregister_operation(name)
        assert "relu" in KINDS and "relu" in IMPLEMENTATIONS

    def test_a_shape_that_does_not_fit_names_the_layer(self):
        network = bt.Sequential(bt.Flatten(), ChannelScale(name="rows"), bt.Linear(3))
        with pytest.raises(bt.ShapeError, match=r"rows \(own_channel_scale\): expected images.*Put it before Flatten"):
            bt.layers.forward_graph(network, SHAPE)

    def test_a_kind_that_gradient_rules_emit_is_not_applied(self):
        @dataclass(frozen=True)
        class Wrong(bt.Layer):
            def build(self, builder, x):
                return builder.apply(SWISH_BACKWARD, (x, x))

        with pytest.raises(
            bt.GraphError, match=r"wrong \(own_swish_backward\): expected a kind of operation with a shape"
        ):
            bt.layers.forward_graph(bt.Sequential(Wrong(name="wrong")), SHAPE)
