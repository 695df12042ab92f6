"""When bytes move: within the room at every step, once out, in time; and small cases by hand."""

from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bathyal.scheduler.link import Link
from bathyal.scheduler.moves import Move, Transfer
from bathyal.scheduler.plan import PAGE, Fetch, Offload, Run, Wait, aligned
from bathyal.scheduler.simulate import play
from bathyal.scheduler.tensor_cache import MOVABLE, Eviction, absences
from bathyal.scheduler.transfers import Timing, with_moves
from hand_made import Cached, cached, drawn, hand_made, orders, planned
from random_networks import random_problem
from spilling import linked

SEEDS = range(8)
INSTANT = Link(1e30, 1e30)


def cases():
    """Random networks in three orders, and random graphs of a few operations, each with rooms from the least on."""
    found = [cached(p, o) for p in (linked(random_problem(s), "offload", s) for s in SEEDS) for o in orders(p)]
    for case in (*found, *(drawn(seed, 12) for seed in range(60))):
        least, most = case.residents.least_bytes(), sum(case.residents.nbytes)
        for room in (least, least + 700, least + (most - least) // 8, least + (most - least) // 3):
            for eviction in Eviction:
                yield case, room, absences(case.residents, room, eviction)


def moved(case, room, away):
    return with_moves(case.order, case.drafted, case.residents, away, room, case.timed)


def test_the_room_is_kept_at_every_step():
    """Also where an output takes over the memory of what came back, whose size is no multiple of a page."""
    for case, room, away in cases():
        assert case.redrafted(moved(case, room, away)).live_bytes().max() <= room


def test_operations_stay_in_their_order_and_nothing_moves_where_all_fits():
    for case, room, away in cases():
        order = moved(case, room, away)
        assert [entry for entry in order if not isinstance(entry, Move)] == case.order
        if not away:
            assert list(order) == case.order


def test_each_transfer_is_waited_for_once_and_in_turn():
    for case, room, away in cases():
        steps = case.redrafted(moved(case, room, away)).steps
        waits = {step.transfer: position for position, step in enumerate(steps) if isinstance(step, Wait)}
        begun = [position for position, step in enumerate(steps) if isinstance(step, Offload | Fetch)]
        assert sorted(waits) == begun
        assert len(waits) == sum(isinstance(step, Wait) for step in steps)
        left = {}
        for position in begun:
            step = steps[position]
            assert position < waits[position]
            if isinstance(step, Offload):
                left[step.copy] = waits[position]
            else:
                assert left[step.copy] < position
        assert sum(isinstance(steps[position], Fetch) for position in begun) == len(away)


def test_a_value_that_is_outside_is_not_sent_again():
    again = 0
    for case, room, away in cases():
        order = moved(case, room, away)
        out = Counter(e.tensor for e in order if isinstance(e, Move) and e.what is Transfer.OFFLOAD)
        back = Counter(e.tensor for e in order if isinstance(e, Move) and e.what is Transfer.FETCH)
        assert set(out) == set(back)
        assert set(out.values()) <= {1}
        again += sum(back.values()) - sum(out.values())
    assert again > 0


def most_at_operations(case, drafted):
    """Bytes at each operation, where all that might move takes whole pages and nobody takes over another's memory."""
    tensors, change = case.problem.graph.tensors, [0] * (len(drafted.steps) + 1)
    for tensor, birth, death, nbytes in zip(drafted.tensor, drafted.birth, drafted.death, drafted.nbytes, strict=True):
        pages = tensor >= 0 and tensors[tensor].role in MOVABLE and nbytes >= PAGE
        change[birth] += aligned(nbytes, PAGE) if pages else nbytes
        change[death + 1] -= aligned(nbytes, PAGE) if pages else nbytes
    live = accumulate(change)
    return [nbytes for step, nbytes in zip(drafted.steps, live, strict=False) if isinstance(step, Run)]


def test_what_comes_back_is_one_heavy_operation_ahead_where_there_is_room():
    early = 0
    for case, room, away in cases():
        drafted = case.redrafted(moved(case, room, away))
        most = most_at_operations(case, drafted)
        before = [0]
        for step in drafted.steps:
            before.append(before[-1] + isinstance(step, Run))
        waits = {step.transfer: n for n, step in enumerate(drafted.steps) if isinstance(step, Wait)}
        gone = {(case.drafted.tensor[a.instance], a.next_use): a.gone for a in away}
        for position, step in enumerate(drafted.steps):
            if not isinstance(step, Fetch):
                continue
            begin, due = before[position], before[waits[position]]
            heavy = [n for n in range(due) if case.timed.heavy[n]]
            if not heavy or begin <= heavy[-1]:
                early += bool(heavy)
                continue
            no_room = most[begin - 1] + drafted.nbytes[step.instance] > room
            assert begin == gone[drafted.tensor[step.instance], due] or no_room
    assert early > 50


def test_on_an_infinitely_fast_link_nothing_waits():
    for case, room, away in cases():
        timed = Timing(case.problem.graph, case.order, case.timed.seconds, INSTANT)
        fast = Cached(case.problem, case.order, case.drafted, case.residents, timed)
        drafted = fast.redrafted(moved(fast, room, away))
        table = type(case.problem.costs)(case.problem.costs.kernels, INSTANT)
        starts, _ = play(drafted.steps, drafted.copies.nbytes, table)
        assert starts[-1] == pytest.approx(sum(case.timed.seconds))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 14), st.sampled_from(Eviction), st.floats(0, 1))
def test_drawn_graphs_give_plans_that_the_verifier_takes(seed, operations, eviction, share):
    case = drawn(seed, operations)
    least, most = case.residents.least_bytes(), sum(case.residents.nbytes)
    room = int(least + (most - least) * share)
    plan = planned(case, moved(case, room, absences(case.residents, room, eviction)))
    assert plan.live_peak_bytes <= room


def there_and_back(room, out, inward, *, between=False):
    """The order in which t1 leaves for t3, which is large, and comes back for the last operation; a page is a second
    or what the link says."""
    rows = [("concat", (0,), (1,)), ("concat", (1,), (2,))]
    rows += [("concat", (2,), (6,))] if between else []
    rows += [("concat", (6 if between else 2,), (3,)), ("concat", (3,), (4,)), ("concat", (4, 1), (5,))]
    sizes = [PAGE, PAGE, PAGE, 3 * PAGE, 64, 64, PAGE]
    case = hand_made(rows, sizes if between else sizes[:6], [1.0] * len(rows), Link(PAGE / out, PAGE / inward))
    away = absences(case.residents, room, Eviction.LRU)
    assert [a.instance for a in away] == [case.drafted.tensor.index(1)]
    return planned(case, moved(case, room, away))


@pytest.mark.parametrize(
    ("room", "out", "inward", "between", "seconds"),
    [
        # 2 s of operations, 2 s until t1 has left, 2 s of operations; t4 takes the room that t1 would need meanwhile,
        # so 1 s until it is back; 1 s.
        (4 * PAGE, 2, 1, False, 8.0),
        # The 64 bytes of t4 are free: t1 comes back during the operation that makes it.
        (4 * PAGE + 64, 2, 1, False, 7.0),
        # It takes two operations' time to come back but may only begin at the second: 1 s more.
        (4 * PAGE + 64, 2, 2, False, 8.0),
        # It leaves beside an operation of 1 s, and is waited for 1 s more; or not at all.
        (4 * PAGE + 64, 2, 1, True, 7.0),
        (4 * PAGE + 64, 1, 1, True, 6.0),
        (4 * PAGE + 64, 0.25, 0.25, True, 6.0),
    ],
)
def test_seconds_by_hand(room, out, inward, between, seconds):
    assert there_and_back(room, out, inward, between=between).predicted_seconds == pytest.approx(seconds)


def test_what_the_host_wrote_can_leave_before_anybody_has_read_it():
    """The second input is read last; meanwhile its room is needed."""
    rows = [("concat", (0,), (2,)), ("concat", (2,), (3,)), ("concat", (3,), (4,)), ("concat", (4, 1), (5,))]
    case = hand_made(rows, [64, PAGE, PAGE, PAGE, 64, 64], [1.0] * 4, Link(PAGE, PAGE))
    room = case.residents.least_bytes()
    away = absences(case.residents, room, Eviction.FARTHEST)
    assert [case.drafted.tensor[a.instance] for a in away] == [1]
    assert planned(case, moved(case, room, away)).live_peak_bytes <= room
