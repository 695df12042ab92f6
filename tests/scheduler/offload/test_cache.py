"""Who is in the arena when, and where: room for all at every position, and the two rules against a plain replay."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bathyal.scheduler.offload.cache import Eviction, EvictionRule, Timing, schedule_cache
from bathyal.scheduler.plan.link import Link
from bathyal.scheduler.plan.steps import PAGE, Run
from tests.support.hand_made import draw_case, hand_made, list_orders, make_case
from tests.support.random_networks import random_problem
from tests.support.spilling import linked, random_link

SEEDS = range(8)
INSTANT = Link(1e30, 1e30)


def cases():
    """Random networks in three orders, with and without recomputation, and graphs of a few operations."""
    for seed in SEEDS:
        problem = linked(random_problem(seed), "offload", seed)
        yield from (make_case(problem, order) for order in list_orders(problem))
    yield from (draw_case(seed, 12) for seed in range(60))


def needed_for_all(case):
    return case.uses.fixed_bytes + sum(case.uses.nbytes)


def rooms(case):
    """From the least that works to what everything needs."""
    least, most = case.uses.least_bytes(), needed_for_all(case)
    return sorted({least, least + 700, least + (most - least) // 16, least + (most - least) // 6, most})


def uses(case, instance):
    """Positions that need an instance: its operations, the start for what the host writes, the end for outputs."""
    lifetimes = case.lifetimes
    found = {lifetimes.birth[instance], lifetimes.death[instance]}
    for position, step in enumerate(lifetimes.steps):
        assert isinstance(step, Run)
        if instance in (*step.inputs, *step.outputs, step.workspace):
            found.add(position)
    return sorted(found)


def stays(case, schedule):
    """Of each instance that the cache places, (first position, last position, address), one after the other."""
    lifetimes, found = case.lifetimes, {}
    for instance in range(len(lifetimes.tensor)):
        if instance in schedule.addresses:
            gone = sorted(d.gone - 1 for d in schedule.evictions if d.instance == instance)
            back = sorted(r.begin for r in schedule.prefetches if r.instance == instance)
            begins, ends = [lifetimes.birth[instance], *back], [*gone, lifetimes.death[instance]]
            found[instance] = list(zip(begins, ends, schedule.addresses[instance], strict=True))
    return found


def check(case, room, schedule, first=0):
    """Everybody is there when needed, at a place of his own."""
    lifetimes, nbytes = case.lifetimes, case.uses.nbytes
    found = stays(case, schedule)
    for instance, spans in found.items():
        assert all(begin <= end for begin, end, _ in spans)
        assert all(end < begin for (_, end, _), (begin, _, _) in pairwise(spans))
        assert all(any(a <= use <= b for a, b, _ in spans) for use in uses(case, instance)), "away when it is used"
        assert len(spans) == 1 or case.uses.movable[instance]
    for position in range(len(lifetimes.steps)):
        handed_over = {old for old, _ in case.uses.handed_over[position]}
        there = sorted(
            (address, address + nbytes[i])
            for i, spans in found.items()
            for begin, end, address in spans
            if begin <= position <= end and i not in handed_over
        )
        assert all(a <= b for (_, a), (b, _) in pairwise(there))
        assert not there or first + case.uses.fixed_bytes <= there[0][0] < there[-1][1] <= first + room


@pytest.mark.parametrize("eviction", EvictionRule)
def test_everybody_has_room_and_is_there_when_used(eviction):
    away = 0
    for case in cases():
        for room in rooms(case):
            schedule = schedule_cache(case.uses, 3 * PAGE, 3 * PAGE + room, eviction, case.timing)
            check(case, room, schedule, first=3 * PAGE)
            away += len(schedule.evictions)
    assert away > 200


def test_nobody_leaves_where_all_fits():
    for case in cases():
        for eviction in EvictionRule:
            schedule = schedule_cache(case.uses, 0, needed_for_all(case), eviction, case.timing)
            assert (schedule.evictions, schedule.prefetches) == ([], [])


def test_the_least_room_is_the_least():
    for case in cases():
        least = case.uses.least_bytes()
        for eviction in EvictionRule:
            assert schedule_cache(case.uses, 0, least, eviction, case.timing) is not None
            assert schedule_cache(case.uses, 0, least - 1, eviction, case.timing) is None


def test_what_may_not_leave_stays():
    for case in cases():
        graph, lifetimes = case.problem.graph, case.lifetimes
        schedule = schedule_cache(case.uses, 0, case.uses.least_bytes(), EvictionRule.FARTHEST, case.timing)
        for eviction_ in schedule.evictions:
            tensor = lifetimes.tensor[eviction_.instance]
            assert tensor >= 0
            assert graph.tensors[tensor].role.value in ("input", "activation", "gradient")
            assert graph.tensors[tensor].nbytes > PAGE - 64


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 16), st.sampled_from(EvictionRule), st.floats(0, 1))
def test_drawn_graphs(seed, operations, eviction, share):
    """Outputs of more than a page, tensors used in place, images that are read late or never."""
    case = draw_case(seed, operations)
    least, most = case.uses.least_bytes(), needed_for_all(case)
    room = int(least + (most - least) * share**3)
    check(case, room, schedule_cache(case.uses, 0, room, eviction, case.timing))


def plain_evictions(case, pages, eviction):
    """The rules as they are said, where every tensor is a page: nothing is remembered but who is there."""
    lifetimes = case.lifetimes
    of = {i: uses(case, i) for i in range(len(lifetimes.tensor)) if i not in case.uses.fixed}
    there, found = set(), []
    for position in range(len(lifetimes.steps)):
        alive = {i for i in of if lifetimes.birth[i] <= position <= lifetimes.death[i]}
        needed = {i for i in alive if position in of[i]}
        reused = {old for old, _ in case.uses.handed_over[position]}
        there = (there & alive) | needed

        def last(i, position=position):
            return max(u for u in of[i] if u < position)

        def following(i, position=position):
            return min(u for u in of[i] if u >= position)

        while len(there - reused) > pages:
            rank = last if eviction is EvictionRule.LRU else lambda i: -following(i)
            victim = min(there - needed, key=lambda i: (rank(i), i))
            there.remove(victim)
            found.append(Eviction(victim, last(victim), position, True))
    return sorted(found, key=lambda d: (d.gone, d.instance))


@pytest.mark.parametrize("eviction", EvictionRule)
def test_of_pages_the_least_recently_used_leave_or_those_whose_next_use_is_farthest(eviction):
    """On a link that takes no time nobody comes early, and any hole will do: the rules decide alone."""
    left = 0
    for seed in range(150):
        case = draw_case(seed, 14, sizes=(PAGE,))
        case = replace(case, timing=Timing(case.timing.seconds, [False] * len(case.order), INSTANT))
        least = case.uses.least_bytes()
        for room in (least, least + PAGE, least + 2 * PAGE):
            schedule = schedule_cache(case.uses, 0, room, eviction, case.timing)
            pages = (room - case.uses.fixed_bytes) // PAGE
            assert schedule.evictions == plain_evictions(case, pages, eviction)
            assert all(back.begin == back.next_use for back in schedule.prefetches)
            left += len(schedule.evictions)
    assert left > 100


def test_an_output_of_the_graph_is_back_at_the_end_and_has_room_there():
    """The first tensor is needed at the end only: there must be room for it beside the last two."""
    rows = [("concat", (0,), (1,)), ("concat", (0,), (2,)), ("concat", (2,), (3,))]
    case = hand_made(rows, [PAGE] * 4, [1.0] * 3, random_link(0), outputs=(1,))
    assert case.uses.least_bytes() == 3 * PAGE
    assert schedule_cache(case.uses, 0, 3 * PAGE - 1, EvictionRule.LRU, case.timing) is None
