"""The plan: what runs when, with which kernel, and where every byte lies.

A plan is data. It speaks of instances, not of tensors: a tensor that is computed twice, or moved out and fetched back,
has two instances with two addresses. Steps name instances by their index. Nothing is left to decide for the executor,
and everything is there for the verifier, the simulator and the race detector.

Steps are begun in order. `Run` computes. `Offload` and `Fetch` begin a transfer, each direction on a queue of its own,
once all earlier `Run` steps are done; the transfer goes on beside the later steps until a `Wait` names it. Bytes that
are being moved may be read meanwhile, but neither written nor given to anybody else before that `Wait`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

from ...memory.errors import PlanError
from ...memory.sizes import align_up as round_up
from ...memory.tiers.tier import TIER_ALIGNMENT

NO_TENSOR = -1
NO_INSTANCE = -1
ALIGNMENT = 64
PAGE = TIER_ALIGNMENT
"""Alignment of the addresses and sizes of all that moves, in the arena and outside: a disk may ask for it."""
FORMAT = 3


def align_up(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Round up to an alignment, by default that of every address in the arena."""
    return round_up(nbytes, alignment)


@dataclass(frozen=True, slots=True)
class Instance:
    """One stay of a tensor, or of a kernel's workspace, in the arena; or of a tensor outside of it.

    Attributes:
        tensor: id in the graph; `NO_TENSOR` for workspace.
        birth: step that first needs the bytes; 0 for what the host writes before the step.
        death: last step that needs them; of what is moved, not before the `Wait` for the transfer.
        nbytes: aligned size.
        address: offset in the arena, or in the memory outside.
    """

    tensor: int
    birth: int
    death: int
    nbytes: int
    address: int


@dataclass(frozen=True, slots=True)
class Run:
    """Run one operation.

    Attributes:
        op: id in the graph.
        kernel: index into the kernels that the backend lists for it.
        inputs: instances of the operation's inputs, in order.
        outputs: instances of its outputs, in order; in a recomputation, kept outputs name the instance that is read.
        workspace: instance of the kernel's scratch memory, or `NO_INSTANCE`.
        recompute: whether the operation has run before in this step.
    """

    op: int
    kernel: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: int
    recompute: bool


@dataclass(frozen=True, slots=True)
class Offload:
    """Begin to copy an instance out of the arena.

    Attributes:
        instance: that is copied; it is there until the `Wait`.
        copy: index into the plan's copies; holds the value from the `Wait` on.
    """

    instance: int
    copy: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Begin to copy back into the arena.

    Attributes:
        copy: index into the plan's copies.
        instance: that is filled; holds the value from the `Wait` on.
    """

    copy: int
    instance: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on once a transfer is done.

    Attributes:
        transfer: position in the plan of the `Offload` or `Fetch` that began it.
    """

    transfer: int


Step: TypeAlias = Run | Offload | Fetch | Wait


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole step.

    Attributes:
        strategy: name of what made it.
        graph: fingerprint of the lowered graph that it is for.
        steps: in order.
        instances: in the arena, named by index.
        copies: outside the arena, named by index.
        outside_bytes: the highest end of a copy; what the memory outside must hold.
        peak_bytes: the highest end of an instance; what the arena must hold.
        live_peak_bytes: the most bytes live at one step, which no placement can go below.
        budget_bytes: what was allowed.
        min_budget_bytes: the smallest budget for which this strategy has a plan.
        predicted_seconds: by the cost table, with what transfers make the computation wait.
        lower_bound_seconds: no plan of this graph within this budget is faster, by the same cost table; where it has
            no link, none that moves nothing out.
        chain_bound_seconds: nor one that runs the blocks of the chain whole, each with one of the ways through it that
            were found; 0 where no chain was planned.
        note: what the strategy chose, for people.
    """

    strategy: str
    graph: str
    steps: tuple[Step, ...]
    instances: tuple[Instance, ...]
    copies: tuple[Instance, ...]
    outside_bytes: int
    peak_bytes: int
    live_peak_bytes: int
    budget_bytes: int
    min_budget_bytes: int
    predicted_seconds: float
    lower_bound_seconds: float
    chain_bound_seconds: float
    note: str = ""

    @property
    def recomputed_ops(self) -> int:
        """Number of steps that repeat an operation."""
        return sum(step.recompute for step in self.runs)

    @property
    def runs(self) -> Iterator[Run]:
        """The steps that compute, in order."""
        return (step for step in self.steps if isinstance(step, Run))

    @property
    def offloaded_bytes(self) -> int:
        """Bytes that leave the arena in a step."""
        return sum(self.copies[step.copy].nbytes for step in self.steps if isinstance(step, Offload))

    @property
    def fetched_bytes(self) -> int:
        """Bytes that come back in a step."""
        return sum(self.copies[step.copy].nbytes for step in self.steps if isinstance(step, Fetch))

    def to_json(self) -> str:
        """Serialize; `Plan.from_json` gives an equal plan back."""
        document: dict[str, Any] = {"format": FORMAT}
        for name in self.__slots__:
            document[name] = getattr(self, name)
        document["steps"] = [[type(s).__name__, *(getattr(s, f) for f in s.__slots__)] for s in self.steps]
        for name in ("instances", "copies"):
            document[name] = [astuple(i) for i in document[name]]
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote.

        Raises:
            PlanError: the text is not a plan of this format.
        """
        try:
            document = json.loads(text)
            found = document.pop("format")
            if found != FORMAT:
                raise PlanError("plan", f"format {FORMAT}", f"format {found}")
            document["steps"] = tuple(_STEPS[kind](*fields) for kind, *fields in document["steps"])
            for name in ("instances", "copies"):
                document[name] = tuple(Instance(*fields) for fields in document[name])
            return cls(**document)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PlanError("plan", "JSON written by Plan.to_json", f"{type(error).__name__}: {error}") from error


def _run(op: int, kernel: int, inputs: list[int], outputs: list[int], workspace: int, recompute: bool) -> Run:
    return Run(op, kernel, tuple(inputs), tuple(outputs), workspace, recompute)


_STEPS: dict[str, Callable[..., Step]] = {"Run": _run, "Offload": Offload, "Fetch": Fetch, "Wait": Wait}
