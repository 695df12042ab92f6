"""What a strategy is to the planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..layout.placer import PlacedOrder, Placer


class Strategy(Protocol):
    """Proposes orders of one graph."""

    def smallest(self) -> PlacedOrder:
        """The plan of least memory."""
        ...

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """The plan of least time that fits; None where none is found."""
        ...


class BestOf:
    """Proposes the best of what several propose."""

    def __init__(self, placer: Placer, proposing: Sequence[Strategy]) -> None:
        self._placer, self._proposing = placer, proposing

    def smallest(self) -> PlacedOrder:
        """The plan of least memory."""
        return self._placer.smallest_of(orders.smallest() for orders in self._proposing)

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """The fastest; None where none has a plan."""
        return self._placer.fastest_of((orders.fastest(budget_bytes) for orders in self._proposing), budget_bytes)
