"""The state of a run as long as it is whole, and the reason why it is not where it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..memory.errors import ConfigError
from ..memory.process.heap import return_free_heap
from .session import Session
from .state import State


class LearnedState:
    """Makes the state of a session when it is first needed, and refuses to where what was learned is lost.

    It is lost when the memory is given back, and when something breaks off that was changing it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._state: State | None = None
        self._lost = ""

    def ensure(self) -> State:
        """Return the state; make it and give it its first values where that has not been done.

        Raises:
            ConfigError: what was learned is lost.
        """
        if self._lost:
            hint = "Save before closing; restore() goes on from a checkpoint."
            raise ConfigError("trainer", "weights from first to last step", self._lost, hint)
        if self._state is None:
            planned, session = self._session.training, self._session
            self._state = State(planned.graph, session.state_layout, session.backend, session.device, session.tier)
            self._state.initialize(session.settings.seed)
            return_free_heap()
        return self._state

    @contextmanager
    def change(self, what: str) -> Iterator[None]:
        """Let the state be changed in the block; where the block breaks off, the state is lost to `what`."""
        self._lost = what
        yield
        self._lost = ""

    def forget(self) -> None:
        """Forget the state, whose memory is given back; from now on what was learned is lost, if there was any."""
        if self._state is not None:
            self._lost = "those of a closed trainer"
        self._state = None

    def lose(self, reason: str) -> None:
        """Refuse to make a state from now on, for a reason."""
        self._lost = reason

    def renew(self) -> None:
        """Allow a new state to be made after the last one was forgotten, which is then filled from a checkpoint."""
        self._lost = ""
