"""Where a value stands in its way into the arena and out of it: one enum, one table of legal moves.

An instance, in the arena, and a copy, outside, go through the same states: what is written outside arrives there while
it leaves the arena. What a plan may do at a step is what the table allows for the state of its operands; a running
operation and a transfer under way pin theirs, since no move gives up bytes that are read or filled. The planners make
their moves ahead of time, so nothing of this is decided in a run: the verifier follows every stay through the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from ...memory.errors import PlanError


class TransferState(str, Enum):
    """What the bytes of an instance or a copy hold."""

    ABSENT = "absent"
    """No value yet."""
    ARRIVING = "arriving"
    """A transfer fills them: not to be read or written."""
    PRESENT = "present"
    """The value."""
    LEAVING = "leaving"
    """The value, which a transfer reads: not to be written or given up."""


class Event(str, Enum):
    """What happens to them; the value says it in an error."""

    MAKE = "an operation makes it"
    READ = "an operation reads it"
    UPDATE = "an operation updates it"
    DISCARD = "a newer value is to take its place"
    FILL = "a transfer to it begins"
    FILLED = "a transfer to it ends"
    COPY = "a transfer from it begins"
    COPIED = "a transfer from it ends"


LEGAL: Mapping[tuple[TransferState, Event], TransferState] = MappingProxyType(
    {
        (TransferState.ABSENT, Event.MAKE): TransferState.PRESENT,
        (TransferState.ABSENT, Event.FILL): TransferState.ARRIVING,
        (TransferState.ARRIVING, Event.FILLED): TransferState.PRESENT,
        (TransferState.PRESENT, Event.READ): TransferState.PRESENT,
        (TransferState.PRESENT, Event.UPDATE): TransferState.PRESENT,
        (TransferState.PRESENT, Event.DISCARD): TransferState.ABSENT,
        (TransferState.PRESENT, Event.COPY): TransferState.LEAVING,
        (TransferState.LEAVING, Event.READ): TransferState.LEAVING,
        (TransferState.LEAVING, Event.COPIED): TransferState.PRESENT,
    }
)
"""From a state and what happens to the state behind it; what is not here must not happen."""


class StateTracker:
    """The stays of one memory, each with its state; all are absent at first.

    Args:
        what: an error calls one of them: "instance" or "copy".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: dict[int, TransferState] = {}

    def __getitem__(self, number: int) -> TransferState:
        return self._found.get(number, TransferState.ABSENT)

    def place(self, number: int) -> None:
        """A stay holds its value from before the step on."""
        self._found[number] = TransferState.PRESENT

    def move(self, where: str, number: int, event: Event) -> None:
        """Something happens to a stay.

        Raises:
            PlanError: the table does not allow it in the state that the stay is in.
        """
        found = self[number]
        after = LEGAL.get((found, event))
        if after is None:
            allowed = " or ".join(before.value for before, cause in LEGAL if cause is event)
            raise PlanError(where, f"{self._what} {number} {allowed} when {event.value}", found.value)
        self._found[number] = after
