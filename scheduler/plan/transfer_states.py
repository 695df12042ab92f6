"""What the bytes of an instance hold while its value moves into the arena and out of it: states, and a table of events.

An instance in the arena and a copy outside go through the same states: a value arrives in its copy while it leaves the
arena. What a plan may do at a step is what the table allows for the state of the step's operands. A transfer under way
pins both of its ends, as no event gives up bytes that are being read or filled. Planners decide all of this ahead of
time; the verifier follows every instance and copy through the table.

Not checked here: sizes, addresses and lifetimes, see `verify` and `verify_moves`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from ...memory.errors import PlanError


class TransferState(str, Enum):
    """What the bytes of an instance or a copy hold."""

    ABSENT = "absent"
    """They hold no value yet."""
    ARRIVING = "arriving"
    """A transfer fills them, so that they must be neither read nor written."""
    PRESENT = "present"
    """They hold the value."""
    LEAVING = "leaving"
    """They hold the value and a transfer reads it, so that they must be neither written nor given up."""


class TransferEvent(str, Enum):
    """What happens to the bytes of an instance or a copy; the value is the wording of errors."""

    MAKE = "an operation makes it"
    READ = "an operation reads it"
    UPDATE = "an operation updates it"
    DISCARD = "a newer value is to take its place"
    FILL = "a transfer to it begins"
    FILLED = "a transfer to it ends"
    COPY = "a transfer from it begins"
    COPIED = "a transfer from it ends"


TRANSITIONS: Mapping[tuple[TransferState, TransferEvent], TransferState] = MappingProxyType(
    {
        (TransferState.ABSENT, TransferEvent.MAKE): TransferState.PRESENT,
        (TransferState.ABSENT, TransferEvent.FILL): TransferState.ARRIVING,
        (TransferState.ARRIVING, TransferEvent.FILLED): TransferState.PRESENT,
        (TransferState.PRESENT, TransferEvent.READ): TransferState.PRESENT,
        (TransferState.PRESENT, TransferEvent.UPDATE): TransferState.PRESENT,
        (TransferState.PRESENT, TransferEvent.DISCARD): TransferState.ABSENT,
        (TransferState.PRESENT, TransferEvent.COPY): TransferState.LEAVING,
        (TransferState.LEAVING, TransferEvent.READ): TransferState.LEAVING,
        (TransferState.LEAVING, TransferEvent.COPIED): TransferState.PRESENT,
    }
)
"""The state that follows a state and an event; what is not in the table must not happen."""


class StateTracker:
    """The state of every instance of one memory, by its index; all are absent at first.

    Args:
        what: what an error calls one of them: "instance" or "copy".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._states: dict[int, TransferState] = {}

    def __getitem__(self, number: int) -> TransferState:
        return self._states.get(number, TransferState.ABSENT)

    def mark_present(self, number: int) -> None:
        """Note that an instance holds its value from before the training step on."""
        self._states[number] = TransferState.PRESENT

    def apply(self, where: str, number: int, event: TransferEvent) -> None:
        """Bring an instance into the state that follows an event.

        Args:
            where: what an error names as the place of the fault.
            number: index of the instance.
            event: what happens to its bytes.

        Raises:
            PlanError: the table does not allow the event in the state that the instance is in.
        """
        found = self[number]
        after = TRANSITIONS.get((found, event))
        if after is None:
            allowed = " or ".join(before.value for before, cause in TRANSITIONS if cause is event)
            raise PlanError(where, f"{self._what} {number} {allowed} when {event.value}", found.value)
        self._states[number] = after
