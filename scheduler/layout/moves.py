"""What stands between the operations of an order: tensors leave the arena and come back.

An order of operation ids and moves fixes a step but for kernels and addresses. A tensor leaves as the value that it has
then; from the wait on, its bytes are free unless an operation reads it once more before it is fetched. Pure data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Transfer(Enum):
    """What happens to a tensor between two operations."""

    OFFLOAD = "offload"
    FETCH = "fetch"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Move:
    """One move.

    Attributes:
        what: begins a transfer, or waits for the tensor's latest.
        tensor: id in the graph.
    """

    what: Transfer
    tensor: int


Order: TypeAlias = Sequence[int | Move]
"""Operation ids in the order in which they run, a second occurrence is a recomputation; and moves between them."""
