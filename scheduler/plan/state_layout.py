"""Where the state lies: in the arena for the whole step, or in the memory outside, which is then its home.

All programs of a run (training, a short last batch, evaluation) share one layout. In the arena and outside alike, state
comes first, block by block: parameters, then state of the optimizer, then running statistics. A tensor belongs to the
block of the operation that reads it first.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from ...layers.graph import STATE, Graph, Role, Tensor
from ...memory.sizes import align_up
from .steps import NO_TENSOR, PAGE, Plan, align_address

_ROLES_OF_A_BLOCK = (Role.PARAMETER, Role.OPTIMIZER, Role.BUFFER)
"""The order of the roles within a block; all of `STATE`."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Addresses of the tensors that live from training step to training step, by name.

    Attributes:
        addresses: addresses in the arena of the tensors that stay there.
        nbytes: size of the part of the arena that these take.
        outside: addresses in the memory outside of the tensors whose home is there.
        outside_nbytes: size of the part of the memory outside that these take.
    """

    addresses: Mapping[str, int]
    nbytes: int
    outside: Mapping[str, int] = field(default_factory=dict)
    outside_nbytes: int = 0

    def tensors_outside(self, graph: Graph) -> set[int]:
        """Ids of the state of a graph whose home is outside."""
        return {t.id for t in graph.with_role(*STATE) if t.name in self.outside} if self.outside else set()


def sort_by_block(graph: Graph) -> list[Tensor]:
    """List all state of a graph, block by block."""
    home: dict[int, int] = {}
    for op in graph.ops:
        for read in op.inputs:
            home.setdefault(read, op.block)
    last = max(home.values(), default=0) + 1
    return sorted(
        graph.with_role(*_ROLES_OF_A_BLOCK), key=lambda t: (home.get(t.id, last), _ROLES_OF_A_BLOCK.index(t.role), t.id)
    )


def lay_out_state(graph: Graph, outside: Container[int] = ()) -> StateLayout:
    """Give all state of a graph its addresses; the tensors with an id in `outside` have their home outside."""
    addresses: dict[str, int] = {}
    homes: dict[str, int] = {}
    end = outside_end = 0
    for t in sort_by_block(graph):
        if t.id in outside:
            homes[t.name] = outside_end
            outside_end += align_up(t.nbytes, PAGE)
        else:
            addresses[t.name] = end
            end += align_address(t.nbytes)
    return StateLayout(addresses, end, homes, outside_end)


def infer_layout(plan: Plan, graph: Graph) -> StateLayout:
    """Find the layout of the state that a plan of `graph` relies on."""
    moved = {copy.tensor for copy in plan.copies if copy.tensor != NO_TENSOR}
    return lay_out_state(graph, {t for t in moved if graph.tensors[t].role in STATE})
