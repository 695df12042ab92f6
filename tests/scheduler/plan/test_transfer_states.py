"""What may happen to bytes in each state: rules that the table must keep, and what an error says."""

import itertools

import pytest

from bathyal.memory.errors import PlanError
from bathyal.scheduler.plan.transfer_states import TRANSITIONS, StateTracker, TransferEvent, TransferState

WRITES = (TransferEvent.MAKE, TransferEvent.UPDATE, TransferEvent.DISCARD, TransferEvent.FILL)
UNDER_WAY = {TransferState.ARRIVING: TransferEvent.FILLED, TransferState.LEAVING: TransferEvent.COPIED}


@pytest.mark.parametrize("state", UNDER_WAY)
def test_what_a_transfer_moves_is_not_written_and_not_moved_again(state):
    """It is pinned: of all events only the end of that transfer changes its state."""
    for event in (*WRITES, TransferEvent.COPY):
        assert (state, event) not in TRANSITIONS
    assert [event for event in TransferEvent if TRANSITIONS.get((state, event), state) is not state] == [
        UNDER_WAY[state]
    ]


@pytest.mark.parametrize("state", [TransferState.ABSENT, TransferState.ARRIVING])
@pytest.mark.parametrize("event", [TransferEvent.READ, TransferEvent.UPDATE, TransferEvent.COPY, TransferEvent.COPIED])
def test_a_value_that_is_not_there_is_not_used(state, event):
    assert (state, event) not in TRANSITIONS


def test_a_value_is_written_over_only_as_an_update_or_after_it_was_given_up():
    assert [e for e in (*WRITES, TransferEvent.FILLED) if (TransferState.PRESENT, e) in TRANSITIONS] == [
        TransferEvent.UPDATE,
        TransferEvent.DISCARD,
    ]
    assert TRANSITIONS[TransferState.PRESENT, TransferEvent.UPDATE] is TransferState.PRESENT
    assert TRANSITIONS[TransferState.PRESENT, TransferEvent.DISCARD] is TransferState.ABSENT


def test_no_state_is_a_dead_end_and_each_is_reached():
    reached = {TransferState.ABSENT}
    for _ in TransferState:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(TransferState)
    for state in TransferState:
        assert any(before is state and after is not state for (before, _), after in TRANSITIONS.items())


def test_an_instance_follows_the_table_and_what_it_forbids_names_all_that_would_do():
    for state, event in itertools.product(TransferState, TransferEvent):
        found = StateTracker("copy")
        # The way to each state; the table alone says where it leads.
        for step in {
            TransferState.ABSENT: (),
            TransferState.ARRIVING: (TransferEvent.FILL,),
            TransferState.PRESENT: (TransferEvent.MAKE,),
            TransferState.LEAVING: (TransferEvent.MAKE, TransferEvent.COPY),
        }[state]:
            found.apply("step 1", 3, step)
        assert found[3] is state
        if (state, event) in TRANSITIONS:
            found.apply("step 2", 3, event)
            assert found[3] is TRANSITIONS[state, event]
            continue
        with pytest.raises(PlanError, match=rf"step 2: expected copy 3 .*when {event.value}, got {state.value}"):
            found.apply("step 2", 3, event)
        assert found[3] is state
