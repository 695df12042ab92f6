"""How large the arena is: as the user says where that can be, else what is free less what lies outside.

Decides from the settings, from what the machine has free and from the estimate of what the process takes beside the
arena. Does not check whether a plan fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...layers.builder import Layer
from ...memory.devices.device import Machine
from ...memory.errors import BudgetError
from ...memory.sizes import format_size, format_size_exact
from ..backends.backend import Backend
from ..data.sources import count_queue_bytes
from ..programs import Mode, make_mode_graph
from ..settings import Settings
from .process_need import ProcessNeed, estimate_process_need

HOST = "host"
"""Name of the machine whose memory arena and batches share."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The bytes of an arena and where they come from.

    Attributes:
        nbytes: how many.
        is_default: whether nobody said how many.
        need: what the process takes outside.
        free_bytes: what was free when it was chosen.
    """

    nbytes: int
    is_default: bool
    need: ProcessNeed
    free_bytes: int

    @contextmanager
    def explain_refusals(self) -> Iterator[None]:
        """Let a refusal of the budget in the block say how the budget came about, where it was a default.

        Raises:
            BudgetError: the one of the block, with more words.
        """
        try:
            yield
        except BudgetError as error:
            if not self.is_default or not error.least_bytes:
                raise
            words = (
                f"No memory was given: the default is what is free, {format_size(self.free_bytes)}, less "
                f"{self.need.describe()}{_describe_share(self)}. {self._say_what_works(error.least_bytes)}"
            )
            hint = f"{words} {error.hint}".strip()
            raise BudgetError(error.where, error.expected, error.actual, hint, error.least_bytes) from error

    def _say_what_works(self, least_bytes: int) -> str:
        if least_bytes + self.need.nbytes <= self.free_bytes:
            return f"Give memory={least_bytes} (--memory {least_bytes}) or more."
        missing = least_bytes + self.need.nbytes - self.free_bytes
        return f"It works with {format_size(missing)} more: raise the limit, end other programs, or plan in less."


def _describe_share(budget: Budget) -> str:
    left = budget.free_bytes - budget.need.nbytes - budget.nbytes
    return ", and a fifth for other programs" if left > budget.free_bytes // 8 else ""


def choose_budget(settings: Settings, machine: Machine, need: ProcessNeed, saved_bytes: int | None) -> Budget:
    """Return the budget of a run.

    Args:
        settings: of the run; its `memory` is taken where it is given.
        machine: where the arena is made.
        need: what the process will take outside the arena.
        saved_bytes: the budget of a saved plan, taken where the settings give none.

    Raises:
        BudgetError: the budget does not fit beside what the process needs; says the largest that does.
    """
    free = machine.free_bytes()
    given = saved_bytes if settings.memory is None else settings.memory
    if given is None:
        return Budget(machine.default_budget(need.nbytes), True, need, free)
    largest = machine.largest_budget(need.nbytes)
    if given > largest:
        works = f"Give at most {largest} (--memory {largest}), or" if largest else "Raise the limit, or"
        left = f"left of the {format_size(free)} that are free, beside {need.describe()}" if largest < free else "free"
        raise BudgetError(
            "memory",
            f"at most the {format_size_exact(largest)} that are {left}",
            f"{format_size_exact(given)}",
            f"{works} end other programs.",
        )
    return Budget(given, False, need, free)


class BudgetChoice:
    """The budget of a session, chosen when it is first asked for, with the source of the batches as far as it is known.

    Args:
        network: its layers.
        settings: of the run.
        backend: on whose machine the arena is made.
    """

    def __init__(self, network: Layer, settings: Settings, backend: Backend) -> None:
        self._network = network
        self._settings = settings
        self._backend = backend
        self._source: object = None
        self._chosen: Budget | None = None

    def expect(self, source: object) -> None:
        """Be told where the batches come from; what they take in memory is left free.

        Raises:
            BudgetError: the arena is there already, and what is free beside it is too little for these batches.
            DataError: the source says what is no number of bytes.
        """
        if self._chosen is None:
            self._source = source
        elif source is not self._source:
            needed = self._count_queue_bytes(source)
            free = self._backend.machine.free_bytes() if self._backend.machine.name == HOST else needed
            if needed > max(free, self._chosen.need.batches):
                raise BudgetError(
                    "data",
                    f"batches that take at most the {format_size_exact(free)} that are free beside the arena",
                    f"a source whose batches take {format_size_exact(needed)}",
                    "Call expect(source) before plan, give a smaller memory=, or a smaller queue (ahead=1).",
                )

    def choose(self, saved_bytes: int | None) -> Budget:
        """Return the budget, the same until `forget`; arguments and errors as `choose_budget` has them."""
        if self._chosen is None:
            machine = self._backend.machine
            # Graphs take memory and time by the image: a batch that can never be must not get that far.
            require_possible_batch(self._settings, machine)
            need = self.estimate_need(plans=saved_bytes is None)
            self._chosen = choose_budget(self._settings, machine, need, saved_bytes)
        return self._chosen

    def estimate_need(self, *, plans: bool = True) -> ProcessNeed:
        """Return what the run will take outside the arena; `plans` as `estimate_process_need` has it."""
        graph = make_mode_graph(self._network, self._settings, Mode.TRAINING, self._settings.input_shape[0])
        return estimate_process_need(graph, self._count_queue_bytes(self._source), plans=plans)

    def forget(self) -> None:
        """Choose anew when next asked, because the memory has been given back."""
        self._chosen = None

    def _count_queue_bytes(self, source: object) -> int:
        return count_queue_bytes(source, count_batch_bytes(self._settings))


def require_possible_batch(settings: Settings, machine: Machine) -> None:
    """Refuse a batch that can never be, before anything is made whose size follows from it.

    Raises:
        BudgetError: a batch alone is larger than what is free.
    """
    free = machine.free_bytes()
    nbytes = count_batch_bytes(settings)
    if nbytes > free:
        raise BudgetError(
            "input_shape",
            f"a batch of at most the {format_size_exact(free)} that are free",
            f"{settings.input_shape}, {format_size_exact(nbytes)}",
            "Give a smaller batch or smaller images.",
        )


def count_batch_bytes(settings: Settings) -> int:
    """Return the bytes of a full batch of images as the network takes it."""
    return math.prod(settings.input_shape) * np.dtype(settings.dtype).itemsize
