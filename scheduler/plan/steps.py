"""The plan: what runs when, with which kernel, and where every byte lies.

A plan is data. It names instances, not tensors: a tensor that is computed twice, or moved out and fetched back, has two
instances with two addresses. Steps name instances by their index. The executor has nothing left to decide, and the
verifier, the simulator and the race detector find all that they need in the plan.

Steps are begun in order. `Run` computes. `Offload` and `Fetch` begin a transfer, each direction on a queue of its own,
once all earlier `Run` steps are done; the transfer goes on beside the later steps until a `Wait` names it. Until then
the bytes that are copied may be read, but neither be written nor belong to another instance.

Not checked here: that the steps make sense, see `verify`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from ...memory.errors import PlanError
from ...memory.sizes import align_up
from ...memory.tiers.tier import TIER_ALIGNMENT

NO_TENSOR = -1
"""In place of a tensor's id: there is none, for instance of a workspace."""
NO_INSTANCE = -1
"""In place of an instance's index: there is none."""
ALIGNMENT = 64
"""Alignment of every address in the arena."""
PAGE = TIER_ALIGNMENT
"""Alignment of the addresses and sizes of everything that moves, in the arena and outside, as a disk may demand it."""
FORMAT = 3
"""Version of the JSON that `Plan.to_json` writes."""


def align_address(nbytes: int) -> int:
    """Round an address or a size up to `ALIGNMENT`, that of every address in the arena."""
    return align_up(nbytes, ALIGNMENT)


@dataclass(frozen=True, slots=True)
class Instance:
    """The bytes of a tensor, or of a kernel's workspace, from one plan step to another, in the arena or outside of it.

    Attributes:
        tensor: id of the tensor in the graph; `NO_TENSOR` for workspace.
        birth: the first plan step that needs the bytes; 0 for what the host writes before the training step.
        death: the last plan step that needs the bytes; of what is moved, not before the `Wait` for the transfer.
        nbytes: the aligned size.
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
        recompute: whether the operation has run before in this training step.
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
        instance: the instance that is copied; it stays in the arena until the `Wait`.
        copy: index into the plan's copies; the copy holds the value from the `Wait` on.
    """

    instance: int
    copy: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Begin to copy back into the arena.

    Attributes:
        copy: index into the plan's copies.
        instance: the instance that is filled; it holds the value from the `Wait` on.
    """

    copy: int
    instance: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Let the computation go on only once a transfer is done.

    Attributes:
        transfer: position in the plan of the `Offload` or `Fetch` that began it.
    """

    transfer: int


Step: TypeAlias = Run | Offload | Fetch | Wait


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole training step.

    Attributes:
        strategy: name of the strategy that made the plan.
        graph: fingerprint of the lowered graph that the plan is for.
        steps: what runs, in order.
        instances: the instances in the arena; steps name them by their index.
        copies: the instances outside the arena; steps name them by their index.
        outside_bytes: the highest end of a copy, which is what the memory outside must hold.
        peak_bytes: the highest end of an instance, which is what the arena must hold.
        live_peak_bytes: the most bytes alive at one plan step; no placement needs less.
        budget_bytes: the budget that the plan was made for.
        min_budget_bytes: the smallest budget for which the strategy has a plan.
        predicted_seconds: time of the training step by the cost table, the waits for transfers included.
        lower_bound_seconds: the time by the same cost table that no plan of this graph within this budget can go below.
            Where the table has no link, this holds for plans that move nothing out.
        chain_bound_seconds: the time that no plan can go below which runs the blocks of the chain whole, each by one of
            the schedules that were found for it; 0 where no chain was planned.
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
        """The number of plan steps that run an operation again."""
        return sum(step.recompute for step in self.runs)

    @property
    def runs(self) -> Iterator[Run]:
        """The plan steps that compute, in order."""
        return (step for step in self.steps if isinstance(step, Run))

    @property
    def offloaded_bytes(self) -> int:
        """The bytes that leave the arena in a training step."""
        return sum(self.copies[step.copy].nbytes for step in self.steps if isinstance(step, Offload))

    @property
    def fetched_bytes(self) -> int:
        """The bytes that come back in a training step."""
        return sum(self.copies[step.copy].nbytes for step in self.steps if isinstance(step, Fetch))

    def to_json(self) -> str:
        """Write the plan as JSON; `Plan.from_json` gives an equal plan back."""
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


def _make_run(op: int, kernel: int, inputs: list[int], outputs: list[int], workspace: int, recompute: bool) -> Run:
    return Run(op, kernel, tuple(inputs), tuple(outputs), workspace, recompute)


_STEPS: Mapping[str, Callable[..., Step]] = MappingProxyType(
    {"Run": _make_run, "Offload": Offload, "Fetch": Fetch, "Wait": Wait}
)
