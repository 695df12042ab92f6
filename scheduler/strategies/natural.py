"""The graph's own order, in which every operation runs once: `keep` and `liveness`, and what others begin with."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ..layout.lifetimes import Lifetimes
from ..layout.placer import PlacedOrder, Placer, require_placed
from .strategy import Strategy, StrategyKind, StrategyName


class NaturalOrder(Strategy):
    """Proposes the graph's own order alone.

    Placing takes seconds for a deep network, so two bounds on where the order can end are looked at first.
    """

    def __init__(self, placer: Placer) -> None:
        self._placer = placer

    @cached_property
    def _order(self) -> list[int]:
        return [op.id for op in self._placer.problem.graph.ops]

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        return self._placer.find_lifetimes(self._order)

    @cached_property
    def _least_at_loss(self) -> int:
        return self._placer.least_at_loss()

    @cached_property
    def _least_end(self) -> int:
        return self._placer.least_end(self._lifetimes)

    @cached_property
    def _placed(self) -> PlacedOrder:
        placed = self._placer.place_lifetimes(self._order, self._lifetimes)
        return replace(placed, note="every operation once, in the network's order")

    def smallest(self) -> PlacedOrder:
        """Return the graph's own order, placed."""
        return self._placed

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Return the graph's own order where it fits, else None."""
        if budget_bytes < self._least_at_loss or budget_bytes < self._least_end:
            return None
        return self._placed if self._placed.end <= budget_bytes else None


class NaturalFirst(Strategy):
    """Proposes the graph's own order while it fits, and what another strategy proposes where it does not."""

    def __init__(self, placer: Placer, otherwise: Strategy) -> None:
        self._natural, self._otherwise = NaturalOrder(placer), otherwise

    def smallest(self) -> PlacedOrder:
        """Return the other strategy's plan of least memory, or the graph's own order where that needs still less."""
        smallest = require_placed(self._otherwise.smallest())
        natural = self._natural.fastest(smallest.end - 1)
        return smallest if natural is None else natural

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Return the graph's own order where it fits, else what the other strategy finds."""
        return self._natural.fastest(budget_bytes) or self._otherwise.fastest(budget_bytes)

    def chain_bound_seconds(self, budget_bytes: int) -> float:
        """Return the other strategy's bound."""
        return self._otherwise.chain_bound_seconds(budget_bytes)


def _make_natural(placer: Placer, name: StrategyName) -> Strategy:
    return NaturalOrder(placer)


KEEP = StrategyKind("keep", _make_natural, natural_first=False, without_backward=True, whole_step=True)
LIVENESS = StrategyKind("liveness", _make_natural, natural_first=False, without_backward=True)
