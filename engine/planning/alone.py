"""Plans of a training step without training: nothing is bound to addresses and no state is made.

There are three ways to a plan, all of which end in `scheduler.planner.make_plan`:

- `plan_without_memory` takes costs by arithmetic, with the link's speed where it is given. It needs neither an arena
  nor its memory, so that networks and budgets of any size can be planned. It is the way of `bathyal plan` and `curve`
  with `--costs analytic` or the device `null`.
- `plan_alone` opens a session for the time of planning and measures the costs in its arena. It is the way of
  `bathyal plan` with measured costs and of `bathyal depth`.
- `Session.program` plans as `plan_alone` does, or follows a saved plan or the kernels of a checkpoint, and then binds
  the plan to addresses. It is the way of whatever runs: `Trainer`, `bathyal train` and `compare`.
"""

from __future__ import annotations

import time
from dataclasses import replace

from threadpoolctl import threadpool_limits

from ...layers.builder import Layer
from ...scheduler.layout.problem import Problem
from ...scheduler.plan.state_layout import lay_out_state
from ...scheduler.planner import make_plan
from ..programs import Mode, Planned, make_mode_graph
from ..session import open_session
from ..settings import Settings
from .lowering import lower
from .plan_file import Surroundings
from .profile import estimate


def make_problem_without_memory(
    network: Layer, settings: Settings, mode: Mode = Mode.TRAINING
) -> tuple[Problem, Surroundings]:
    """Say what there is to plan, by analytic costs and without an arena, and what its kernels belong to."""
    backend = settings.make_backend()
    threads = settings.count_threads()
    # A kernel's workspace may depend on the number of threads.
    with threadpool_limits(threads):
        surroundings = Surroundings(backend.name, backend.version(), threads)
        graph = lower(make_mode_graph(network, settings, mode, settings.input_shape[0]), backend)
        costs = estimate(graph, backend)
    if settings.link is not None:
        costs = replace(costs, link=settings.link)
    most = settings.spill_size
    problem = Problem(graph, costs, settings.kernels, lay_out_state(graph), most_outside_bytes=most)
    return problem, surroundings


def plan_without_memory(network: Layer, settings: Settings, budget_bytes: int, mode: Mode = Mode.TRAINING) -> Planned:
    """Plan for `budget_bytes` by analytic costs, without an arena: networks and budgets of any size."""
    begin = time.perf_counter()
    problem, surroundings = make_problem_without_memory(network, settings, mode)
    plan = make_plan(problem, settings.strategy, budget_bytes)
    return Planned(problem.graph, problem.costs, plan, time.perf_counter() - begin, surroundings)


def plan_alone(network: Layer, settings: Settings, budget_bytes: int, *, progress: bool = False) -> Planned:
    """Plan a training step as a session does, timing kernels and disk where that is asked for, but bind nothing."""
    with open_session(network, settings, progress=progress) as session:
        problem = session.problem
        here = Surroundings(session.backend.name, session.backend.version(), session.threads)
    begin = time.perf_counter()
    plan = make_plan(problem, settings.strategy, budget_bytes)
    return Planned(problem.graph, problem.costs, plan, time.perf_counter() - begin, here)
