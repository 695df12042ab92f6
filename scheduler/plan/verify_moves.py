"""Check the transfers of a plan: what leaves is whole and stays until it has left, what comes back is read when it is there.

Part of `verify`; shares no code with the planners.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from ...layers.graph import STATE, Graph
from ...memory.errors import PlanError
from .state_layout import StateLayout
from .steps import NO_TENSOR, PAGE, Fetch, Instance, Offload, Plan, Wait
from .transfer_states import Event, StateTracker


class TransferReplay:
    """Follows the transfers through a step.

    Args:
        plan: whose steps are replayed.
        graph: lowered.
        state: where it lies.
        inside: of each instance, whether its value is there.
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
        self._check_copies()
        for number in self._homes.values():
            self._outside.place(number)
            self._written_outside[number] = 0

    def _check_copies(self) -> None:
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
        for first, second in overlapping(plan.copies):
            raise PlanError(f"copy {second}", "copies outside apart while they live", f"it overlaps copy {first}")

    def _check_home(self, where: str, number: int, copy: Instance) -> None:
        """State is outside at its home alone, for the whole step; all else is above."""
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

    def at_home(self) -> dict[int, int]:
        """Of each tensor of the state whose home is outside, how often its value there was updated."""
        return {tensor: self._written_outside[number] for tensor, number in self._homes.items()}

    def follow(self, where: str, position: int, step: Offload | Fetch | Wait) -> None:
        """Check one step."""
        match step:
            case Wait():
                self._end(where, position, step.transfer)
                return
            case Offload():
                self._begin_offload(where, position, step)
            case Fetch():
                self._begin_fetch(where, position, step)
        self._in_flight[position] = step

    def _pair(self, where: str, position: int, step: Offload | Fetch) -> tuple[Instance, Instance]:
        plan = self._plan
        if not 0 <= step.instance < len(plan.instances) or not 0 <= step.copy < len(plan.copies):
            raise PlanError(where, "an instance and a copy of the plan", str(step))
        instance, copy = plan.instances[step.instance], plan.copies[step.copy]
        if instance.tensor == NO_TENSOR or (instance.tensor, instance.nbytes) != (copy.tensor, copy.nbytes):
            raise PlanError(where, "an instance and a copy of one tensor and size", f"{instance}, {copy}")
        if instance.address % PAGE:
            raise PlanError(where, f"an address aligned to {PAGE}", str(instance.address))
        self._alive(where, position, instance, copy)
        return instance, copy

    def _alive(self, where: str, position: int, *stays: Instance) -> None:
        for stay in stays:
            if not stay.birth <= position <= stay.death:
                raise PlanError(where, "both ends of a transfer alive until it is waited for", str(stay))

    def _begin_offload(self, where: str, position: int, step: Offload) -> None:
        _, copy = self._pair(where, position, step)
        self._inside.move(where, step.instance, Event.COPY)
        if copy.tensor in self._homes:
            self._outside.move(where, step.copy, Event.DISCARD)
        elif copy.birth != position:
            raise PlanError(where, "a fresh copy", f"copy {step.copy}, {copy}")
        self._outside.move(where, step.copy, Event.FILL)

    def _begin_fetch(self, where: str, position: int, step: Fetch) -> None:
        instance, _ = self._pair(where, position, step)
        self._outside.move(where, step.copy, Event.COPY)
        if instance.birth != position:
            raise PlanError(where, "a fresh instance", f"instance {step.instance}, {instance}")
        self._inside.move(where, step.instance, Event.FILL)

    def _end(self, where: str, position: int, transfer: int) -> None:
        step = self._in_flight.pop(transfer, None)
        if step is None:
            raise PlanError(where, "a transfer that has begun and was not waited for yet", f"step {transfer}")
        self._alive(where, position, self._plan.instances[step.instance], self._plan.copies[step.copy])
        if isinstance(step, Offload):
            self._inside.move(where, step.instance, Event.COPIED)
            self._outside.move(where, step.copy, Event.FILLED)
            self._written_outside[step.copy] = self._written[step.instance]
        else:
            self._outside.move(where, step.copy, Event.COPIED)
            self._inside.move(where, step.instance, Event.FILLED)
            self._written[step.instance] = self._written_outside[step.copy]

    def finish(self) -> None:
        """At the end of the step."""
        if self._in_flight:
            raise PlanError("plan", "a wait for every transfer", f"none for that of step {min(self._in_flight)}")


def overlapping(stays: Sequence[Instance]) -> list[tuple[int, int]]:
    """The first two stays that share a byte at a step; empty where none do."""
    events = sorted(
        [(s.birth, 0, n) for n, s in enumerate(stays)] + [(s.death + 1, -1, n) for n, s in enumerate(stays)]
    )
    alive: list[tuple[int, int]] = []
    for _, kind, number in events:
        stay = stays[number]
        place = bisect_left(alive, (stay.address, number))
        if kind:
            del alive[place]
            continue
        for other in alive[max(place - 1, 0) : place + 1]:
            its = stays[other[1]]
            if its.address < stay.address + stay.nbytes and stay.address < its.address + its.nbytes:
                return [(other[1], number)]
        insort(alive, (stay.address, number))
    return []
