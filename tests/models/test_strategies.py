"""Every bundled network under every strategy and several budgets: bytes as predicted, no race, the same bits."""

import numpy as np
import pytest

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.executor import Executor
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.engine.trainer import Trainer
from bathyal.layers import SGD, forward_graph, training_graph
from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice
from bathyal.memory.devices.simulated import SimulatedDevice
from bathyal.models.registry import MODELS, build_model
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import lay_out_state
from bathyal.scheduler.planner import StrategyPlanner
from bathyal.scheduler.strategies.names import STRATEGIES
from tests.support.spilling import linked, needs_link, tier_for

DEEPEST = ("resnet1001", "resnet2500", *(f"preact_resnet{depth}" for depth in (101, 152, 164, 200, 1001)))
NAMES = [name for name in MODELS if name not in DEEPEST]


def shape(name, batch=2):
    entry = MODELS[name]
    return (batch, entry.channels, *(max(entry.smallest_image, 32),) * 2)


def problem(name):
    backend = NullBackend()
    forward = forward_graph(build_model(name, classes=10), shape(name))
    graph = lower(training_graph(forward, SGD(0.1, momentum=0.9)), backend)
    return Problem(graph, estimate(graph, backend), Kernels.FIXED, lay_out_state(graph))


def budgets(planner):
    least, most = planner.least_bytes, planner.plan(2**45).peak_bytes
    return sorted({least, least + (most - least) // 4, least + (most - least) // 2, most})


def feeds(case):
    tensors = {t.name: t for t in case.graph.tensors}
    return {n: np.zeros(tensors[n].shape, tensors[n].dtype) for n in ("images", "labels", "scalars", "random_key")}


DEEP = ("resnet34", "resnet101", "resnet152", "preact_resnet18", "preact_resnet50")
"""Of these only what differs from network to network: `auto` takes the plans of `chain`, the baselines are short."""
FIXED = [name for name in STRATEGIES if not needs_link(name)]
SPILLING = ("alexnet", "vgg11_bn", "resnet18", "resnet50")


@pytest.mark.parametrize("name", NAMES)
def test_high_water_is_the_predicted_peak_and_placement_wastes_little(name):
    """At the smallest budget, the largest worth giving, and between; arena bytes over the peak of live bytes."""
    case = problem(name)
    for strategy in ("keep", "liveness", "chain") if name in DEEP else FIXED:
        planner = StrategyPlanner(case, strategy)
        for budget in budgets(planner):
            plan = planner.plan(budget)
            assert plan.peak_bytes <= 1.02 * plan.live_peak_bytes, (strategy, budget)
            check_high_water(case, plan, budget)


@pytest.mark.parametrize("strategy", ["offload", "stream"])
@pytest.mark.parametrize("name", SPILLING)
def test_high_water_is_the_predicted_peak_where_tensors_leave(name, strategy):
    """At the smallest budget and at more: the arena is what there is, and what lives in it fills it but for holes."""
    case = linked(problem(name), strategy)
    planner = StrategyPlanner(case, strategy)
    for budget in (planner.least_bytes, planner.least_bytes * 5 // 4):
        plan = planner.plan(budget)
        assert plan.peak_bytes <= 1.1 * plan.live_peak_bytes
        check_high_water(case, plan, budget)


def check_high_water(case, plan, budget):
    with Arena(budget) as arena, HostDevice(arena) as device, tier_for(plan) as tier:
        executor = Executor(plan, case.graph, NullBackend(), device, tier)
        executor.bind()
        executor.run(feeds(case))
        assert executor.high_water_bytes == plan.peak_bytes <= budget


@pytest.mark.parametrize("name", ["alexnet", "vgg16_bn", "resnet18", "resnet50"])
def test_simulated_device_finds_no_race(name):
    case = problem(name)
    planner = StrategyPlanner(case, "chain")
    plan = planner.plan(planner.least_bytes)
    for seed in range(8):
        with Arena(plan.peak_bytes) as arena, SimulatedDevice(arena, seed) as device:
            executor = Executor(plan, case.graph, NullBackend(), device)
            executor.bind()
            for _ in range(2):
                executor.run(feeds(case))


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "resnet50"])
def test_five_steps_give_the_same_weights(name):
    size = shape(name, batch=4)
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=size).astype(np.float32), rng.integers(0, 10, size[0])) for _ in range(5)]

    def trained(strategy, memory):
        network, optimizer = build_model(name, classes=10), SGD(0.01, momentum=0.9, weight_decay=1e-4)
        choices = {"strategy": strategy, "memory": memory, "kernels": "fixed", "costs": "analytic"}
        with Trainer(network, size, optimizer=optimizer, **choices) as trainer:
            losses = [result.loss for result in trainer.fit(batches)]
            assert trainer.arena_high_water_bytes == trainer.plan.peak_bytes <= memory
            assert np.isfinite(losses).all()
            return trainer.plan, (losses, trainer.state.weights_sha256())

    plan, expected = trained("keep", 4 * 2**30)
    assert trained("liveness", 2 * 2**30)[1] == expected
    least = trained("chain", 2 * 2**30)[0].min_budget_bytes
    for memory in (least, least + (plan.peak_bytes - least) // 8):
        _, found = trained("chain", memory)
        assert found == expected
    assert trained("chain", least)[0].recomputed_ops > 0
