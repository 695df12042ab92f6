"""What bytes are for adds up to what is live, and the passes to the step."""

import numpy as np
import pytest

from bathyal.layers.graph import FED, STATE, Role
from bathyal.scheduler.plan.occupancy import Use, measure_occupancy
from bathyal.scheduler.plan.simulate import simulate
from bathyal.scheduler.planner import make_plan
from tests.support.plan_checks import PLENTY, budgets, with_workspace
from tests.support.random_networks import random_problem


@pytest.mark.parametrize("strategy", ["keep", "liveness", "chain", "revolve"])
@pytest.mark.parametrize("seed", range(8))
def test_uses_add_up_to_the_live_bytes(seed, strategy):
    problem = with_workspace(random_problem(seed), 256) if seed % 2 else random_problem(seed)
    plan = make_plan(problem, strategy, budgets(problem, strategy)[0])
    timeline, found = simulate(plan, problem.costs), measure_occupancy(plan, problem.graph, problem.costs)
    assert (sum(found.nbytes.values()) == timeline.live_bytes).all()
    assert all((steps >= 0).all() for steps in found.nbytes.values())
    state = sum(i.nbytes for i in plan.instances if i.tensor >= 0 and problem.graph.tensors[i.tensor].role in STATE)
    assert (found.nbytes[Use.STATE] == state).all()
    assert found.nbytes[Use.WORKSPACE].max() == (256 if seed % 2 else 0)
    assert (np.diff(found.edges) >= 0).all()
    assert found.edges[-1] == timeline.seconds
    assert found.repeated.sum() == plan.recomputed_ops


def test_passes_follow_one_another():
    problem = random_problem(1)
    plan = make_plan(problem, "liveness", PLENTY)
    found = measure_occupancy(plan, problem.graph, problem.costs)
    forward, loss, backward = (found.passes[name] for name in ("forward", "loss", "backward"))
    assert forward[0] == 0
    assert forward[1] == loss[0] < loss[1] == backward[0] < backward[1] == found.edges[-1]
    before = int(np.searchsorted(found.edges, forward[1])) - 1
    assert found.nbytes[Use.GRADIENTS][:before].max() == 0
    fed = {t.id for t in problem.graph.tensors if t.role in FED or t.role is Role.METRIC}
    assert found.nbytes[Use.FED].max() <= sum(i.nbytes for i in plan.instances if i.tensor in fed)
