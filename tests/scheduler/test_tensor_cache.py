"""Who is away when: enough room at every step, and the two rules, against a replay that looks at everything anew."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bathyal.layers.graph import FED, STATE
from bathyal.scheduler.plan import NO_TENSOR, PAGE, Run
from bathyal.scheduler.tensor_cache import Absence, Eviction, absences
from hand_made import cached, drawn, hand_made, orders
from random_networks import random_problem
from spilling import linked, random_link

SEEDS = range(10)


def cases():
    """Random networks in three orders, with and without recomputation."""
    for seed in SEEDS:
        problem = linked(random_problem(seed), "offload", seed)
        yield from (cached(problem, order) for order in orders(problem))


def rooms(case):
    """From the least that works to what everything needs."""
    least = case.residents.least_bytes()
    most = max(resident_bytes(case, ()))
    return sorted({least + (most - least) * k // 4 for k in range(5)})


def uses(case, instance):
    """Positions that need an instance: its operations, the start for what the host writes, the end for outputs."""
    drafted = case.drafted
    found = {drafted.birth[instance], drafted.death[instance]}
    for position, step in enumerate(drafted.steps):
        assert isinstance(step, Run)
        if instance in (*step.inputs, *step.outputs, step.workspace):
            found.add(position)
    return sorted(found)


def movable(case, instance):
    tensor = case.drafted.tensor[instance]
    if tensor == NO_TENSOR or case.drafted.nbytes[instance] < PAGE:
        return False
    role = case.problem.graph.tensors[tensor].role
    return role not in STATE and role.value in ("input", "activation", "gradient")


def size(case, instance):
    nbytes = case.drafted.nbytes[instance]
    return -(-nbytes // PAGE) * PAGE if movable(case, instance) else nbytes


def resident_bytes(case, away):
    """Bytes at each position: of each buffer once, whoever of its instances is there."""
    drafted, found = case.drafted, []
    gone = {}
    for absence in away:
        gone.setdefault(absence.instance, []).append(range(absence.gone, absence.next_use))
    for position in range(len(drafted.steps)):
        there = {}
        for i, buffer in enumerate(drafted.buffer):
            alive = drafted.birth[i] <= position <= drafted.death[i]
            if alive and not any(position in span for span in gone.get(i, ())):
                there[buffer] = size(case, i)
        found.append(sum(there.values()))
    return found


def slow_absences(case, room, eviction):
    """The rules as they are said: nothing remembered from one position to the next but who is there."""
    drafted = case.drafted
    of = {i: uses(case, i) for i in range(len(drafted.tensor))}
    there, found = set(), []
    for position in range(len(drafted.steps)):
        alive = {i for i in of if drafted.birth[i] <= position <= drafted.death[i]}
        needed = {i for i in alive if position in of[i]}
        there = (there & alive) | needed

        def later(i, position=position):
            return min(u for u in of[i] if u >= position)

        def earlier(i, position=position):
            return max(u for u in of[i] if u < position)

        while sum({drafted.buffer[i]: size(case, i) for i in there}.values()) > room:
            may_go = [i for i in there - needed if movable(case, i)]
            if not may_go:
                return None
            order = earlier if eviction is Eviction.LRU else lambda i: -later(i)
            victim = min(may_go, key=lambda i: (order(i), -size(case, i), i))
            there.remove(victim)
            found.append(Absence(victim, earlier(victim), position, later(victim), True))
    return found


@pytest.mark.parametrize("eviction", Eviction)
def test_never_more_than_the_room_is_there_and_who_is_used_is_there(eviction):
    for case in cases():
        for room in rooms(case):
            away = absences(case.residents, room, eviction)
            assert max(resident_bytes(case, away)) <= room
            for absence in away:
                used = uses(case, absence.instance)
                assert absence.last_use < absence.gone <= absence.next_use
                assert used[used.index(absence.last_use) + 1] == absence.next_use
                assert movable(case, absence.instance)


def test_nobody_leaves_where_everything_fits_and_somebody_as_soon_as_it_does_not():
    for case in cases():
        most = max(resident_bytes(case, ()))
        for eviction in Eviction:
            assert absences(case.residents, most, eviction) == []
            assert absences(case.residents, most - 1, eviction) != []


def test_the_least_room_is_the_least():
    for case in cases():
        least = case.residents.least_bytes()
        for eviction in Eviction:
            assert absences(case.residents, least, eviction) is not None
            assert absences(case.residents, least - 1, eviction) is None


def test_each_absence_makes_room_that_is_needed():
    """At the position where somebody leaves, it would not have fitted with him."""
    for case in cases():
        for room in rooms(case)[:3]:
            away = absences(case.residents, room, Eviction.LRU)
            for absence in away:
                stays = [a for a in away if a is not absence]
                assert resident_bytes(case, stays)[absence.gone] > room - smallest_later(case, away, absence)


def smallest_later(case, away, absence):
    """The bytes of those that left after `absence` at the same position: one of them may have made it needless."""
    place = away.index(absence)
    return sum(size(case, a.instance) for a in away[place + 1 :] if a.gone == absence.gone)


@pytest.mark.parametrize("eviction", Eviction)
def test_the_rules_are_those_that_are_said(eviction):
    for case in cases():
        for room in rooms(case)[:3]:
            assert absences(case.residents, room, eviction) == slow_absences(case, room, eviction)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.sampled_from(Eviction), st.floats(0, 1))
def test_drawn_graphs(seed, operations, eviction, share):
    """Outputs of more than a page, tensors used in place, images that are read late or never."""
    case = drawn(seed, operations)
    least, most = case.residents.least_bytes(), max(resident_bytes(case, ()))
    room = int(least + (most - least) * share)
    away = absences(case.residents, room, eviction)
    assert away == slow_absences(case, room, eviction)
    assert max(resident_bytes(case, away)) <= room
    assert absences(case.residents, least - 1, eviction) is None


def test_state_workspace_and_what_the_step_is_told_stay():
    for case in cases():
        away = absences(case.residents, case.residents.least_bytes(), Eviction.FARTHEST)
        roles = {case.problem.graph.tensors[case.drafted.tensor[a.instance]].role for a in away}
        assert roles.isdisjoint(STATE)
        assert {r.value for r in roles & FED} <= {"input"}


def test_an_output_of_the_graph_is_back_at_the_end_and_has_room_there():
    """The first tensor is needed at the end only: there is no room for it beside the last two."""
    rows = [("concat", (0,), (1,)), ("concat", (0,), (2,)), ("concat", (2,), (3,))]
    case = hand_made(rows, [PAGE] * 4, [1.0] * 3, random_link(0), outputs=(1,))
    assert case.residents.least_bytes() == 3 * PAGE
    assert absences(case.residents, 2 * PAGE, Eviction.LRU) is None
