"""Three things at once, by hand: the computation, what leaves and what comes back."""

from itertools import pairwise

import pytest

from bathyal.memory.errors import ConfigError, PlanError
from bathyal.scheduler.layout.moves import Move, Transfer
from bathyal.scheduler.plan.costs import CostTable, KernelCost
from bathyal.scheduler.plan.link import Link
from bathyal.scheduler.plan.simulate import simulate, time_steps
from bathyal.scheduler.plan.steps import NO_INSTANCE, PAGE, Fetch, Offload, Run, Wait
from bathyal.scheduler.planner import StrategyPlanner
from tests.support.hand_made import hand_made, planned
from tests.support.plan_checks import budgets
from tests.support.random_networks import random_problem
from tests.support.spilling import linked

OP = Run(0, 0, (), (), NO_INSTANCE, False)
"""1 s."""
COSTS = CostTable(
    ((KernelCost("only", 0, 1.0),), (KernelCost("slow", 0, 5.0), KernelCost("fast", 64, 3.0))), Link(10, 20)
)
"""100 bytes leave in 10 s and come back in 5 s."""


def seconds(*steps, copies=(10, 30, 100)):
    starts, transfers = time_steps(steps, copies, COSTS)
    return starts.tolist(), [(c.position, c.outward, c.nbytes, c.start, c.end) for c in transfers]


def test_operations_alone():
    assert seconds(OP, Run(1, 0, (), (), NO_INSTANCE, False), Run(1, 1, (), (), NO_INSTANCE, True)) == (
        [0, 1, 6, 9],
        [],
    )
    assert seconds() == ([0], [])


def test_a_transfer_beside_operations_costs_nothing():
    assert seconds(Offload(0, 0), OP, OP, Wait(0), OP) == ([0, 0, 1, 2, 2, 3], [(0, True, 10, 0, 1)])


def test_a_wait_holds_the_computation_up_until_the_transfer_is_done():
    assert seconds(OP, Offload(0, 1), OP, Wait(1), OP) == ([0, 1, 1, 2, 4, 5], [(1, True, 30, 1, 4)])


def test_one_direction_carries_one_thing_after_the_other():
    starts, transfers = seconds(Offload(0, 1), Offload(1, 0), OP, Wait(1), Wait(0), OP)
    assert starts == [0, 0, 0, 1, 4, 4, 5]  # the wait for the second is longer than that for the first
    assert transfers == [(0, True, 30, 0, 3), (1, True, 10, 3, 4)]


def test_both_directions_at_once():
    starts, transfers = seconds(Offload(0, 2), Fetch(1, 1), Fetch(0, 2), OP, Wait(1), Wait(2), Wait(0))
    assert transfers == [(0, True, 100, 0, 10), (1, False, 30, 0, 1.5), (2, False, 10, 1.5, 2)]
    assert starts == [0, 0, 0, 0, 1, 1.5, 2, 10]


def test_a_transfer_begins_no_earlier_than_the_computation_comes_to_it():
    starts, transfers = seconds(OP, Fetch(0, 0), Wait(1), OP, Fetch(0, 0), OP, Wait(4))
    assert transfers == [(1, False, 10, 1, 1.5), (4, False, 10, 2.5, 3)]
    assert starts == [0, 1, 1, 1.5, 2.5, 2.5, 3.5, 3.5]


def test_nobody_waits_for_a_transfer_that_no_wait_names():
    assert seconds(OP, Offload(0, 2))[0][-1] == 1


def contended(*steps, contention=0.25, copies=(10, 30, 100)):
    """With a link that takes from the computation what it needs."""
    costs = CostTable(COSTS.kernels, Link(10, 20, contention))
    return time_steps(steps, copies, costs)[0].tolist()


def test_beside_a_transfer_the_computation_is_slower_and_afterwards_not():
    # 1 s of the transfer leaves 0.75 s of the operation's 1 done; the rest takes as long as ever.
    assert contended(Offload(0, 0), OP, OP) == [0, 0, 1.25, 2.25]
    # Within a long transfer, all of it is slower by a fourth.
    assert contended(Offload(0, 2), OP, OP) == pytest.approx([0, 0, 4 / 3, 8 / 3])


def test_beside_both_directions_the_computation_loses_twice_as_much():
    # Out until 3, in until 5: to 3 at half the speed, 1.5 done; to 5 at three quarters, 3 done; 2 more.
    slow = Run(1, 0, (), (), NO_INSTANCE, False)
    assert contended(Offload(0, 1), Fetch(2, 1), slow) == [0, 0, 0, 7]
    assert contended(Fetch(2, 0), Offload(1, 1), slow) == [0, 0, 0, 7]


def test_a_wait_is_not_slowed():
    assert contended(Offload(0, 1), Wait(0), OP) == [0, 0, 3, 4]


@pytest.mark.parametrize("contention", [-0.1, 0.46, 1.0, float("nan")])
def test_a_contention_that_cannot_be_is_refused(contention):
    with pytest.raises(ConfigError, match="contention from 0 to"):
        Link(1.0, 1.0, contention)


def test_transfers_without_a_link_are_refused():
    out, wait, back = (Move(what, 1) for what in (Transfer.OFFLOAD, Transfer.WAIT, Transfer.FETCH))
    rows = [("concat", (0,), (1,)), ("concat", (0,), (2,)), ("concat", (1, 2), (3,))]
    case = hand_made(rows, [PAGE] * 4, [1.0] * 3, Link(PAGE, PAGE))
    plan = planned(case, [0, out, wait, 1, back, wait, 2])
    assert simulate(plan, case.problem.costs).seconds == plan.predicted_seconds == 5
    with pytest.raises(PlanError, match="a link whose speed is known"):
        simulate(plan, CostTable(case.problem.costs.kernels))


@pytest.mark.parametrize("strategy", ["offload", "superneurons"])
@pytest.mark.parametrize("seed", [0, 3, 9, 10, 12])
def test_a_step_takes_what_is_computed_and_what_is_waited_for(seed, strategy):
    problem = linked(random_problem(seed), strategy, seed)
    planner = StrategyPlanner(problem, strategy)
    for budget in budgets(problem, strategy)[:2]:
        plan = planner.plan(budget)
        timeline = simulate(plan, problem.costs)
        computing = sum(problem.costs.kernels[s.op][s.kernel].seconds for s in plan.runs)
        assert timeline.seconds == pytest.approx(computing + timeline.stalled_seconds) == plan.predicted_seconds
        ends = {transfer.position: transfer.end for transfer in timeline.transfers}
        stalls = [
            max(0.0, ends[step.transfer] - timeline.starts[position])
            for position, step in enumerate(plan.steps)
            if isinstance(step, Wait)
        ]
        assert timeline.stalled_seconds == pytest.approx(sum(stalls), abs=1e-15)
        for outward in (True, False):
            same = [c for c in timeline.transfers if c.outward is outward]
            assert sum(c.nbytes for c in same) == (plan.offloaded_bytes if outward else plan.fetched_bytes)
            for before, after in pairwise(same):
                assert after.start >= before.end
            for transfer in same:
                assert transfer.start >= timeline.starts[transfer.position]
