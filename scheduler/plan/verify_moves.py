"""Check the transfers of a plan.

What leaves the arena must hold its value and stay until it has left; what comes back must be there before it is read.
Copies must lie apart while they live, and state outside at its home. This is part of `verify` and shares no code with
the planners; seconds are not checked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from ...layers.graph import STATE, Graph
from ...memory.errors import PlanError
from .state_layout import StateLayout
from .steps import NO_TENSOR, PAGE, Fetch, Instance, Offload, Plan, Wait
from .transfer_states import StateTracker, TransferEvent


class TransferReplay:
    """The transfers of a plan while its steps are replayed.

    Args:
        plan: the plan whose steps are replayed.
        graph: lowered.
        state: where the state lies.
        inside: the state of each instance in the arena.
        written: of the instances that hold a value, how often it was updated; those that come back are added.
    """

    def __init__(
        self, plan: Plan, graph: Graph, state: StateLayout, inside: StateTracker, written: dict[int, int]
    ) -> None:
        self._plan = plan
        self._graph = graph
        self._state = state
        self._inside = inside
        self._outside = StateTracker("copy")
        self._written = written
        self._written_outside: dict[int, int] = {}
        self._in_flight: dict[int, Offload | Fetch] = {}
        self._homes: dict[int, int] = {}

    def check_copies(self) -> None:
        """Check where the copies lie, and note which of them are there before the training step; to be called first.

        Raises:
            PlanError: a copy is not aligned, not at its home, dead, or in the way of another.
        """
        plan, end = self._plan, 0
        for number, copy in enumerate(plan.copies):
            where = f"copy {number}"
            if copy.address < 0 or copy.address % PAGE or copy.nbytes <= 0 or copy.nbytes % PAGE:
                raise PlanError(where, f"whole pages of {PAGE} bytes", f"{copy.nbytes} bytes at {copy.address}")
            if not 0 <= copy.tensor < len(self._graph.tensors):
                raise PlanError(where, f"one of {len(self._graph.tensors)} tensors", str(copy.tensor))
            self._check_home(where, number, copy)
            if not 0 <= copy.birth <= copy.death < len(plan.steps):
                raise PlanError(where, "a life within the step", f"{copy.birth} to {copy.death}")
            end = max(end, copy.address + copy.nbytes)
        if end != plan.outside_bytes:
            raise PlanError("plan", f"outside_bytes {end}, the highest end of a copy", str(plan.outside_bytes))
        overlap = find_overlap(plan.copies)
        if overlap is not None:
            first, second = overlap
            raise PlanError(f"copy {second}", "copies outside apart while they live", f"it overlaps copy {first}")
        for number in self._homes.values():
            self._outside.mark_present(number)
            self._written_outside[number] = 0

    def _check_home(self, where: str, number: int, copy: Instance) -> None:
        """Check that state lies outside at its home alone, for the whole training step, and all else above it."""
        tensor, state = self._graph.tensors[copy.tensor], self._state
        if tensor.role not in STATE:
            if copy.address < state.outside_nbytes:
                raise PlanError(where, f"an address above the state outside, to {state.outside_nbytes}", str(copy))
            return
        if tensor.name not in state.outside:
            raise PlanError(where, "state that stays in the arena", tensor.name)
        whole = (copy.birth, copy.death) == (0, len(self._plan.steps) - 1)
        if copy.address != state.outside[tensor.name] or not whole or copy.tensor in self._homes:
            raise PlanError(
                where, f"one home of {tensor.name}, at {state.outside[tensor.name]}, for the step", str(copy)
            )
        self._homes[copy.tensor] = number

    def count_home_updates(self) -> dict[int, int]:
        """Count for each tensor whose home is outside how often its value there was updated."""
        return {tensor: self._written_outside[number] for tensor, number in self._homes.items()}

    def follow(self, where: str, position: int, step: Offload | Fetch | Wait) -> None:
        """Check one plan step and note what it changes."""
        match step:
            case Wait():
                self._end_transfer(where, position, step.transfer)
                return
            case Offload():
                self._begin_offload(where, position, step)
            case Fetch():
                self._begin_fetch(where, position, step)
        self._in_flight[position] = step

    def _check_ends(self, where: str, position: int, step: Offload | Fetch) -> tuple[Instance, Instance]:
        plan = self._plan
        if not 0 <= step.instance < len(plan.instances) or not 0 <= step.copy < len(plan.copies):
            raise PlanError(where, "an instance and a copy of the plan", str(step))
        instance, copy = plan.instances[step.instance], plan.copies[step.copy]
        if instance.tensor == NO_TENSOR or (instance.tensor, instance.nbytes) != (copy.tensor, copy.nbytes):
            raise PlanError(where, "an instance and a copy of one tensor and size", f"{instance}, {copy}")
        if instance.address % PAGE:
            raise PlanError(where, f"an address aligned to {PAGE}", str(instance.address))
        self._check_alive(where, position, instance, copy)
        return instance, copy

    def _check_alive(self, where: str, position: int, *instances: Instance) -> None:
        for i in instances:
            if not i.birth <= position <= i.death:
                raise PlanError(where, "both ends of a transfer alive until it is waited for", str(i))

    def _begin_offload(self, where: str, position: int, step: Offload) -> None:
        _, copy = self._check_ends(where, position, step)
        self._inside.apply(where, step.instance, TransferEvent.COPY)
        if copy.tensor in self._homes:
            self._outside.apply(where, step.copy, TransferEvent.DISCARD)
        elif copy.birth != position:
            raise PlanError(where, "a fresh copy", f"copy {step.copy}, {copy}")
        self._outside.apply(where, step.copy, TransferEvent.FILL)

    def _begin_fetch(self, where: str, position: int, step: Fetch) -> None:
        instance, _ = self._check_ends(where, position, step)
        self._outside.apply(where, step.copy, TransferEvent.COPY)
        if instance.birth != position:
            raise PlanError(where, "a fresh instance", f"instance {step.instance}, {instance}")
        self._inside.apply(where, step.instance, TransferEvent.FILL)

    def _end_transfer(self, where: str, position: int, transfer: int) -> None:
        step = self._in_flight.pop(transfer, None)
        if step is None:
            raise PlanError(where, "a transfer that has begun and was not waited for yet", f"step {transfer}")
        self._check_alive(where, position, self._plan.instances[step.instance], self._plan.copies[step.copy])
        if isinstance(step, Offload):
            self._inside.apply(where, step.instance, TransferEvent.COPIED)
            self._outside.apply(where, step.copy, TransferEvent.FILLED)
            self._written_outside[step.copy] = self._written[step.instance]
        else:
            self._outside.apply(where, step.copy, TransferEvent.COPIED)
            self._inside.apply(where, step.instance, TransferEvent.FILLED)
            self._written[step.instance] = self._written_outside[step.copy]

    def finish(self) -> None:
        """Check at the end of the training step that every transfer was waited for."""
        if self._in_flight:
            raise PlanError("plan", "a wait for every transfer", f"none for that of step {min(self._in_flight)}")


def find_overlap(instances: Sequence[Instance]) -> tuple[int, int] | None:
    """Find the first two instances, by their indices, that share a byte at a plan step; None where none do."""
    dies, is_born = -1, 0
    events = sorted(
        [(i.birth, is_born, n) for n, i in enumerate(instances)]
        + [(i.death + 1, dies, n) for n, i in enumerate(instances)]
    )
    alive: list[tuple[int, int]] = []
    for _, event, number in events:
        new = instances[number]
        place = bisect_left(alive, (new.address, number))
        if event == dies:
            del alive[place]
            continue
        for _, neighbour in alive[max(place - 1, 0) : place + 1]:
            other = instances[neighbour]
            if other.address < new.address + new.nbytes and new.address < other.address + other.nbytes:
                return neighbour, number
        insort(alive, (new.address, number))
    return None
