"""When bytes move: within the room at every step, once out, in time; and small cases by hand."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bathyal.scheduler.layout.moves import Move, Transfer
from bathyal.scheduler.offload.cache import EvictionRule, schedule_cache
from bathyal.scheduler.offload.transfers import insert_moves
from bathyal.scheduler.plan.costs import CostTable
from bathyal.scheduler.plan.link import Link
from bathyal.scheduler.plan.steps import PAGE, Fetch, Offload, Run, Wait
from tests.support.hand_made import draw_case, hand_made, list_orders, make_case, offload_case, planned
from tests.support.plan_checks import run_byte_by_byte
from tests.support.random_networks import random_problem
from tests.support.spilling import linked

SEEDS = range(8)
INSTANT = Link(1e30, 1e30)


def cases():
    """Random networks in three orders, and graphs of a few operations, each with rooms from the least on."""
    found = [make_case(p, o) for p in (linked(random_problem(s), "offload", s) for s in SEEDS) for o in list_orders(p)]
    for case in (*found, *(draw_case(seed, 12) for seed in range(60))):
        least, most = case.uses.least_bytes(), case.uses.fixed_bytes + sum(case.uses.nbytes)
        for room in (least, least + (most - least) // 16, least + (most - least) // 6):
            for eviction in EvictionRule:
                yield case, room, eviction


def moved(case, room, eviction):
    schedule = schedule_cache(case.uses, 0, room, eviction, case.timing)
    return schedule, insert_moves(case.order, case.lifetimes, schedule, case.timing)


def arena(case, room):
    """The budget that leaves so much room above the state."""
    return -(-case.problem.state.nbytes // PAGE) * PAGE + room


def test_every_plan_is_one_that_the_verifier_takes_and_stays_within_the_room():
    """Also where an output takes over the memory of what came back, whose size is no multiple of a page."""
    for case, room, eviction in cases():
        plan = offload_case(case, arena(case, room), eviction)
        assert plan.peak_bytes <= arena(case, room)
        assert plan.live_peak_bytes <= plan.peak_bytes


def test_operations_stay_in_their_order_and_nothing_moves_where_all_fits():
    for case, room, eviction in cases():
        schedule, order = moved(case, room, eviction)
        assert [entry for entry in order if not isinstance(entry, Move)] == case.order
        if not schedule.evictions:
            assert list(order) == case.order


def test_each_transfer_is_waited_for_once_and_in_turn():
    for case, room, eviction in cases():
        plan = offload_case(case, arena(case, room), eviction)
        waits = {step.transfer: position for position, step in enumerate(plan.steps) if isinstance(step, Wait)}
        begun = [position for position, step in enumerate(plan.steps) if isinstance(step, Offload | Fetch)]
        assert sorted(waits) == begun
        assert len(waits) == sum(isinstance(step, Wait) for step in plan.steps)
        left = {}
        for position in begun:
            step = plan.steps[position]
            if isinstance(step, Offload):
                left[step.copy] = waits[position]
            else:
                assert left[step.copy] < position < waits[position]


def test_a_value_that_is_outside_is_not_sent_again():
    again = 0
    for case, room, eviction in cases():
        _, order = moved(case, room, eviction)
        out = Counter(e.tensor for e in order if isinstance(e, Move) and e.what is Transfer.OFFLOAD)
        back = Counter(e.tensor for e in order if isinstance(e, Move) and e.what is Transfer.FETCH)
        assert set(out) == set(back)
        assert set(out.values()) <= {1}
        again += sum(back.values()) - sum(out.values())
    assert again > 0


def test_on_an_infinitely_fast_link_nothing_waits():
    for case, room, eviction in cases():
        costs = CostTable(case.problem.costs.kernels, INSTANT)
        fast = make_case(replace(case.problem, costs=costs), case.order)
        plan = offload_case(fast, arena(case, room), eviction)
        assert plan.predicted_seconds == pytest.approx(sum(case.timing.seconds))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 14), st.sampled_from(EvictionRule), st.floats(0, 1))
def test_drawn_graphs_run_byte_by_byte(seed, operations, eviction, share):
    case = draw_case(seed, operations)
    least, most = case.uses.least_bytes(), case.uses.fixed_bytes + sum(case.uses.nbytes)
    room = int(least + (most - least) * share**3)
    plan = offload_case(case, room, eviction)
    assert plan.peak_bytes <= room
    run_byte_by_byte(plan, case.problem)


def there_and_back(out, inward, *, full=False, heavy=None):
    """The order in which t1 leaves for t3, which is large, and comes back for the last operation.

    Six operations of a second; a page takes as many seconds as is said. Four pages of room, beside a small one.
    """
    rows = [("concat", (0,), (1,)), ("concat", (1,), (2,)), ("concat", (2,), (3,)), ("concat", (3,), (4,))]
    rows += [("concat", (4,), (5,)), ("concat", (5, 1), (6,))]
    if heavy is not None:
        rows[heavy] = ("conv2d", *rows[heavy][1:])
    sizes = [PAGE, PAGE, PAGE, 3 * PAGE, PAGE if full else 64, 3 * PAGE if full else 64, 64]
    case = hand_made(rows, sizes, [1.0] * 6, Link(PAGE / out, PAGE / inward))
    plan = offload_case(case, 5 * PAGE, EvictionRule.FARTHEST)
    assert [plan.copies[step.copy].tensor for step in plan.steps if isinstance(step, Fetch)] == [1]
    before = sum(
        isinstance(s, Run) for s in plan.steps[: next(n for n, s in enumerate(plan.steps) if isinstance(s, Fetch))]
    )
    return before, plan.predicted_seconds


@pytest.mark.parametrize(
    ("choices", "begin", "seconds"),
    [
        # 2 s of operations, 2 s until t1 has left, 4 s of operations; it comes back beside the last but one.
        ({"out": 2, "inward": 0.5}, 4, 8.0),
        # A second, with the margin, is too long for one operation.
        ({"out": 2, "inward": 1}, 3, 8.0),
        # Only once t2 is gone may it come back: 1 s is left to wait for.
        ({"out": 1, "inward": 3}, 3, 8.0),
        # The fifth operation takes all room: only then may it come back.
        ({"out": 1, "inward": 1, "full": True}, 5, 8.0),
        # One heavy operation ahead, however fast the link.
        ({"out": 1, "inward": 0.01, "heavy": 3}, 3, 7.0),
    ],
)
def test_seconds_by_hand(choices, begin, seconds):
    assert there_and_back(**choices) == (begin, pytest.approx(seconds))


def test_what_the_host_wrote_can_leave_before_anybody_has_read_it():
    """The second input is read last; meanwhile its room is needed."""
    rows = [("concat", (0,), (2,)), ("concat", (2,), (3,)), ("concat", (3,), (4,)), ("concat", (4, 1), (5,))]
    case = hand_made(rows, [64, PAGE, PAGE, PAGE, 64, 64], [1.0] * 4, Link(PAGE, PAGE))
    plan = offload_case(case, case.uses.least_bytes(), EvictionRule.FARTHEST)
    assert [plan.copies[step.copy].tensor for step in plan.steps if isinstance(step, Fetch)] == [1]


def test_an_output_takes_over_the_memory_of_what_came_back():
    """Its size is no multiple of a page, so that what moves is padded; the output takes that over too."""
    rows = [("concat", (0,), (1,)), ("concat", (0,), (2,)), ("relu", (1,), (3,))]
    case = hand_made(rows, [64, PAGE + 64, PAGE, PAGE + 64], [1.0] * 3, Link(PAGE, PAGE))
    out, back, wait = (Move(what, 1) for what in (Transfer.OFFLOAD, Transfer.FETCH, Transfer.WAIT))
    plan = planned(case, [0, out, wait, 1, back, wait, 2])
    fetched, made = plan.steps[-1].inputs[0], plan.steps[-1].outputs[0]
    assert plan.instances[fetched].address == plan.instances[made].address
    assert plan.instances[fetched].nbytes == plan.instances[made].nbytes == 2 * PAGE
