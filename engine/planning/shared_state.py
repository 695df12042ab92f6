"""What the programs of a session must agree about: the tensors that live from step to step.

The training step of a full batch decides how each of them lies; every other program is lowered with that as it is, and
is compared with it tensor by tensor before it is bound, whatever the backend. Where they lie is decided and checked
elsewhere (`scheduler.plan.state_layout`, `scheduler.plan.verify`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ...layers.graph import STATE, Graph, Tensor
from ...memory.errors import PlanError

COMPARED = ("shape", "dtype", "layout", "nbytes", "role", "part")
"""The fields of a tensor that say how its bytes are to be read; the layout names the backend's descriptor."""


def list_state(graph: Graph) -> Mapping[str, Tensor]:
    """Return the state of a lowered graph by name."""
    return {tensor.name: tensor for tensor in graph.with_role(*STATE)}


def require_same_state(where: str, graph: Graph, state: Mapping[str, Tensor]) -> None:
    """Check that a program reads and writes the state as the training step does; it may leave out what it needs not.

    Args:
        where: names the program.
        graph: of the program, lowered.
        state: of the training step, by name.

    Raises:
        PlanError: a tensor of its state differs, or is none of the training step's; names the first.
    """
    for tensor in graph.with_role(*STATE):
        known = state.get(tensor.name)
        if known is None:
            raise PlanError(f"{where}, {tensor.name}", "state that the training step has", "no such tensor there")
        for field in COMPARED:
            expected, found = getattr(known, field), getattr(tensor, field)
            if found != expected:
                hint = "The backend must lower a graph with the state's layouts as they are given."
                raise PlanError(f"{where}, {tensor.name}", f"{field} {expected!r}", f"{field} {found!r}", hint)
