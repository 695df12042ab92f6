"""Which tensors of the state stay in the arena where some of it may have its home outside.

Parameters of the first blocks stay before those of later ones, and all parameters before state of the optimizer and
running statistics: a parameter is read in both passes, so it would be moved more often. A tensor that does not fit any
more leaves, and so do all after it. Decides from sizes and roles alone.
"""

from __future__ import annotations

from ...layers.graph import Graph, Role
from ...memory.sizes import align_up
from ..plan.state_layout import StateLayout, lay_out_state, sort_by_block
from ..plan.steps import PAGE

STREAMED_BYTES = 64 * 2**10
"""Smaller tensors of the state stay in the arena: together they are small, and each would be a transfer of its own.
Only the plan of least memory lets those leave that fill a page."""


def keep_state(graph: Graph, staying_bytes: int, large_bytes: int = STREAMED_BYTES) -> StateLayout:
    """Lay the state of a graph out so that at most `staying_bytes` of its large tensors stay in the arena.

    Args:
        graph: lowered.
        staying_bytes: what the large tensors in the arena may take.
        large_bytes: the size from which on a tensor counts as large; smaller ones always stay.
    """
    large = [t for t in sort_by_block(graph) if t.nbytes >= large_bytes]
    outside: set[int] = set()
    for tensor in sorted(large, key=lambda t: t.role is not Role.PARAMETER):
        staying_bytes -= tensor.nbytes
        if staying_bytes < 0:
            outside.add(tensor.id)
    return lay_out_state(graph, outside)


def find_first_address(state: StateLayout) -> int:
    """Find the first address above the state at which what may move can lie."""
    return align_up(state.nbytes, PAGE)
