"""Training steps of small networks on a backend: what to plan, what the host feeds, how it runs, who agrees."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from bathyal.engine.executor import Executor
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.engine.state import State
from bathyal.layers import SGD, forward_graph, training_graph
from bathyal.layers.graph import Role
from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice
from bathyal.memory.errors import BudgetError
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import infer_layout, lay_out_state
from bathyal.scheduler.planner import make_plan
from tests.support.host_tier import HostTier
from tests.support.operation_harness import POISON, relative_distance
from tests.support.random_networks import random_network
from tests.support.spilling import linked, tier_for

SHAPE = (3, 3, 8, 8)
CLASSES = 7
STEPS = 3
PLENTY = 2**40

OPTIMIZER = SGD(0.05, momentum=0.9, weight_decay=1e-3)
FIRST_VALUES = 5
"""Their seed."""


@dataclass(frozen=True)
class Run:
    """What some steps of training left behind.

    Attributes:
        losses: of each step.
        digest: of the weights.
        weights: the whole state, by name.
        executor: that ran.
    """

    losses: list[float]
    digest: str
    weights: Mapping[str, np.ndarray]
    executor: Executor

    @property
    def bits(self):
        """Equal for runs that came to the same results, to the bit."""
        return self.losses, self.digest


def problem(network, backend, kernels=Kernels.FIXED, shape=SHAPE):
    """A network's training step as `backend` lowers it; a number is the seed of a random network."""
    network = random_network(network) if isinstance(network, int) else network
    graph = lower(training_graph(forward_graph(network, shape), OPTIMIZER), backend)
    return Problem(graph, estimate(graph, backend), kernels, lay_out_state(graph))


def least_bytes(case, strategy):
    """The smallest budget with which a strategy works, as the refusal of a smaller one tells it."""
    with pytest.raises(BudgetError) as refused:
        make_plan(case, strategy, 1)
    return refused.value.least_bytes


def least_plan(case, strategy):
    """The plan of the least memory with which a strategy works, with a link where it moves tensors."""
    case = linked(case, strategy)
    return make_plan(case, strategy, least_bytes(case, strategy))


def feeds(step, shape=SHAPE):
    """What the host gives to a step."""
    rng = np.random.default_rng(step)
    return {
        "images": rng.normal(size=shape).astype(np.float32),
        "labels": rng.integers(0, CLASSES, shape[0]),
        "scalars": np.array([0.05, 1.0]),
        "random_key": np.array([11, step], np.int64),
    }


def poisoned_arena(nbytes):
    """An arena full of NaN: whatever is read before it is written shows."""
    arena = Arena(nbytes)
    arena.poison(POISON, 0, nbytes)
    return arena


def run(case, plan, backend, device, tier, steps=STEPS):
    """Train some steps in an arena full of NaN."""
    device.arena.poison(POISON, 0, plan.peak_bytes)
    shape = case.graph.with_role(Role.INPUT)[0].shape
    state = State(case.graph, infer_layout(plan, case.graph), backend, device, tier)
    state.initialize(FIRST_VALUES)
    executor = Executor(plan, case.graph, backend, device, tier)
    executor.bind()
    losses = [float(executor.run(feeds(step, shape))["loss"][0]) for step in range(steps)]
    return Run(losses, state.weights_sha256(), {name: state.read(name) for name in state.names()}, executor)


def run_on_host(case, plan, backend, make_device=HostDevice, steps=STEPS):
    """The same on a device of the host's memory, by default the one that computes at once."""
    with make_device(poisoned_arena(plan.peak_bytes)) as device, tier_for(plan) as tier:
        return run(case, plan, backend, device, tier, steps)


def run_on_own_device(case, plan, backend):
    """The same on a device of the backend's machine, with memory outside where the plan moves bytes out."""
    with backend.machine.open(plan.peak_bytes) as device:
        if not plan.outside_bytes:
            return run(case, plan, backend, device, None)
        with (device.own_tier or HostTier)(plan.outside_bytes) as tier:
            return run(case, plan, backend, device, tier)


def check_agreement(found, exact, most=1e-3):
    """Losses and weights of two runs agree but for rounding, `most` relatively; the largest relative distance."""
    np.testing.assert_allclose(found.losses, exact.losses, rtol=most / 10)
    assert found.weights.keys() == exact.weights.keys()
    largest = 0.0
    for momentum in (False, True):
        names = sorted(n for n in exact.weights if n.endswith(".momentum") is momentum)
        both = (np.concatenate([w[n].ravel() for n in names]) for w in (found.weights, exact.weights))
        largest = max(largest, relative_distance(*both))
    assert largest <= most
    return largest
