"""`auto`: the optimal chain plan and, where tensors may be moved over a link, `stream`; the faster of the two."""

from __future__ import annotations

from collections.abc import Sequence

from ..layout.placer import PlacedOrder, Placer
from .chain import ChainStrategy
from .offload_kinds import STREAM, make_stream
from .strategy import LinkUse, Strategy, StrategyKind, StrategyName


class BestOf(Strategy):
    """Proposes the best of what several strategies propose.

    Args:
        placer: of the graph.
        strategies: asked in this order; of equals the first is taken.
    """

    def __init__(self, placer: Placer, strategies: Sequence[Strategy]) -> None:
        self._placer, self._strategies = placer, strategies

    def smallest(self) -> PlacedOrder:
        """Return the plan that needs the least memory."""
        return self._placer.choose_smallest(strategy.smallest() for strategy in self._strategies)

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Return the fastest plan; None where no strategy has one."""
        return self._placer.choose_fastest((s.fastest(budget_bytes) for s in self._strategies), budget_bytes)

    def chain_bound_seconds(self, budget_bytes: int) -> float:
        """Return the highest bound of the strategies."""
        return max(strategy.chain_bound_seconds(budget_bytes) for strategy in self._strategies)


def _make_auto(placer: Placer, name: StrategyName) -> Strategy:
    chain = ChainStrategy(placer)
    if placer.problem.costs.link is None:
        return chain
    return BestOf(placer, [chain, make_stream(placer, StrategyName(STREAM.name), chain)])


AUTO = StrategyKind("auto", _make_auto, link=LinkUse.OPTIONAL, least_without_link=True, least_with_link=True)
