"""An order of operations, with moves between them by which tensors leave the arena and come back.

An order fixes a step but for kernels and addresses. A tensor leaves with the value that it has when the transfer
begins. From the wait on its bytes are free, unless an operation reads it once more before it is fetched. Pure data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Transfer(Enum):
    """What happens to a tensor between two operations: a transfer out or back begins, or its end is waited for."""

    OFFLOAD = "offload"
    FETCH = "fetch"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Move:
    """One move.

    Attributes:
        what: whether a transfer begins, or the latest of the tensor is waited for.
        tensor: the tensor's id in the graph.
    """

    what: Transfer
    tensor: int


Order: TypeAlias = Sequence[int | Move]
"""Operation ids in the order in which they run, a second occurrence is a recomputation; and moves between them."""
