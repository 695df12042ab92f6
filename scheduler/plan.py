"""The plan: what runs when, with which kernel, and where every byte lies.

A plan is data. It speaks of instances, not of tensors: a tensor that is computed twice has two instances with two
addresses. Steps name instances by their index. Nothing is left to decide for the executor, and everything is there
for the verifier, the simulator and the race detector.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ..memory.errors import PlanError

NO_TENSOR = -1
NO_INSTANCE = -1
ALIGNMENT = 64
FORMAT = 2


def aligned(nbytes: int) -> int:
    """Round up to the alignment of every address in the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Instance:
    """One stay of a tensor, or of a kernel's workspace, in the arena.

    Attributes:
        tensor: id in the graph; `NO_TENSOR` for workspace.
        birth: step that first needs the bytes; 0 for what the host writes before the step.
        death: last step that needs them.
        nbytes: aligned size.
        address: offset in the arena.
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
class Plan:
    """A whole step.

    Attributes:
        strategy: name of what made it.
        graph: fingerprint of the lowered graph that it is for.
        steps: in order.
        instances: named by index.
        peak_bytes: the highest end of an instance; what the arena must hold.
        live_peak_bytes: the most bytes live at one step, which no placement can go below.
        budget_bytes: what was allowed.
        min_budget_bytes: the smallest budget for which this strategy has a plan.
        predicted_seconds: by the cost table.
        lower_bound_seconds: no plan of this graph within this budget is faster, by the same cost table.
        chain_bound_seconds: nor one that runs the blocks of the chain whole, each with one of the ways through it that
            were found; 0 where no chain was planned.
    """

    strategy: str
    graph: str
    steps: tuple[Run, ...]
    instances: tuple[Instance, ...]
    peak_bytes: int
    live_peak_bytes: int
    budget_bytes: int
    min_budget_bytes: int
    predicted_seconds: float
    lower_bound_seconds: float
    chain_bound_seconds: float

    @property
    def recomputed_ops(self) -> int:
        """Number of steps that repeat an operation."""
        return sum(step.recompute for step in self.steps)

    def to_json(self) -> str:
        """Serialize; `Plan.from_json` gives an equal plan back."""
        document: dict[str, Any] = {"format": FORMAT}
        for name in self.__slots__:
            document[name] = getattr(self, name)
        document["steps"] = [list(asdict(s).values()) for s in self.steps]
        document["instances"] = [list(asdict(i).values()) for i in self.instances]
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
            document["steps"] = tuple(
                Run(op, kernel, tuple(inputs), tuple(outputs), workspace, recompute)
                for op, kernel, inputs, outputs, workspace, recompute in document["steps"]
            )
            document["instances"] = tuple(Instance(*fields) for fields in document["instances"])
            return cls(**document)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PlanError("plan", "JSON written by Plan.to_json", f"{type(error).__name__}: {error}") from error
