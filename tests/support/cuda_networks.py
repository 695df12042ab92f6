"""Training steps of random networks on the CUDA backend: with a library of the host, or on a GPU."""

import numpy as np

from bathyal.engine.executor import Executor
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.engine.state import State
from bathyal.layers import SGD, forward_graph, training_graph
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import infer_layout, lay_out_state
from bathyal.scheduler.planner import StrategyPlanner, make_plan
from tests.support.host_tier import HostTier
from tests.support.lowered_graphs import relative_distance
from tests.support.random_networks import random_network
from tests.support.spilling import linked

SHAPE = (3, 3, 8, 8)
STEPS = 3
PLENTY = 2**40


OPTIMIZER = SGD(0.05, momentum=0.9, weight_decay=1e-3)
FIRST_VALUES = 5
"""Their seed."""


def problem(seed, backend, kernels=Kernels.FIXED, network=None):
    """A network's training step, by default a random one's, as `backend` lowers it."""
    forward = forward_graph(network or random_network(seed), SHAPE)
    graph = lower(training_graph(forward, OPTIMIZER), backend)
    return Problem(graph, estimate(graph, backend), kernels, lay_out_state(graph))


def least_plan(case, strategy):
    """The plan of the least memory with which a strategy works."""
    case = linked(case, strategy)
    return make_plan(case, strategy, StrategyPlanner(case, strategy).least_bytes)


def feeds(step):
    """What the host gives to a step."""
    rng = np.random.default_rng(step)
    return {
        "images": rng.normal(size=SHAPE).astype(np.float32),
        "labels": rng.integers(0, 7, SHAPE[0]),
        "scalars": np.array([0.05, 1.0]),
        "random_key": np.array([11, step], np.int64),
    }


def run(case, plan, backend, device, tier, steps=STEPS):
    """Losses, digest, weights and the executor, after some steps in an arena full of NaN."""
    device.arena.poison(0xFF, 0, plan.peak_bytes)
    state = State(case.graph, infer_layout(plan, case.graph), backend, device, tier)
    state.initialize(FIRST_VALUES)
    executor = Executor(plan, case.graph, backend, device, tier)
    executor.bind()
    losses = [float(executor.run(feeds(step))["loss"][0]) for step in range(steps)]
    return losses, state.weights_sha256(), {name: state.read(name) for name in state.names()}, executor


def run_on_own_device(case, plan, backend):
    """The same on a device of the backend's machine, with memory outside where the plan moves bytes out."""
    with backend.machine.open(plan.peak_bytes) as device:
        if not plan.outside_bytes:
            return run(case, plan, backend, device, None)
        with (device.own_tier or HostTier)(plan.outside_bytes) as tier:
            return run(case, plan, backend, device, tier)


def check_agreement(found, exact, most=1e-3):
    """Losses and weights of two backends agree but for rounding, `most` relatively; the largest relative distance."""
    (losses, _, weights, _), (expected, _, right, _) = found, exact
    np.testing.assert_allclose(losses, expected, rtol=most / 10)
    assert weights.keys() == right.keys()
    largest = 0.0
    for momentum in (False, True):
        names = sorted(n for n in right if n.endswith(".momentum") is momentum)
        both = (np.concatenate([w[n].ravel() for n in names]) for w in (weights, right))
        largest = max(largest, relative_distance(*both))
    assert largest <= most
    return largest
