"""The orders of the optimal chain plan, as they run: drafted, placed, and solved again where placement needs more.

Pure, like all of planning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ..blocks.model import background_bytes, chain_model, choose_kernels, expand
from ..chain.bound import chain_bound_seconds
from ..chain.least_memory import minimum_plan
from ..chain.portfolio import make_portfolio
from ..chain.simulate import simulate_chain
from ..chain.types import Chain, ChainStep
from ..layout.kernels import Kernels, fast_gradients, fastest
from ..layout.lifetimes import without_dead_recomputations
from ..layout.placer import ATTEMPTS, PlacedOrder, Placer
from .baselines import BaselineStrategy, plain_model
from .names import StrategyName

logger = logging.getLogger(__name__)

SHORT = 24
"""Blocks up to which `chain` looks at the baselines' orders too."""


class ChainStrategy:
    """Proposes the orders of the chain model, and where one of the baselines happens to be better, its.

    The model counts a block's rerun whole, and its bytes as if blocks had no lifetimes in common; what is drafted may
    leave operations out and share bytes. So in a network of few blocks an order that the model thinks worse can be better.
    """

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        problem = placer.problem
        self._graph = problem.graph
        choices = [placer.choose]
        if problem.kernels is Kernels.FIT:
            choices.append(fast_gradients(problem.graph, problem.costs, placer.choose))
        self._model = chain_model(problem.graph, problem.costs, choices)
        self._quickest: Chain | None = None
        self._baselines: list[BaselineStrategy] = []
        self._is_short = len(self._model.blocks) <= SHORT
        if self._is_short:
            plain = plain_model(placer)
            self._baselines = [
                BaselineStrategy(placer, StrategyName(name), plain) for name in ("sequential", "revolve")
            ]

    def _place(self, steps: Sequence[ChainStep], enough: int) -> PlacedOrder:
        order = without_dead_recomputations(self._graph, expand(self._graph, self._model, steps))
        placed = self._placer.place_order(order, choose_kernels(self._model, steps), enough)
        return replace(placed, note="an optimal chain plan")

    def order_within(self, room_bytes: int) -> list[int] | None:
        """The fastest order of operations whose activations take at most so much by the chain's count; None without."""
        solution = make_portfolio(self._model.chain, room_bytes).solve(room_bytes) if room_bytes > 0 else None
        if solution is None:
            return None
        return without_dead_recomputations(self._graph, expand(self._graph, self._model, solution.steps))

    def smallest(self) -> PlacedOrder:
        """The plan of least memory."""
        steps = [minimum_plan(self._model.chain)]
        if self._is_short:
            room = simulate_chain(self._model.chain, steps[0])[0]
            solution = make_portfolio(self._model.chain, room).solve(room)
            steps += [solution.steps] if solution else []
        return self._placer.smallest_of([*(self._place(s, 0) for s in steps), *(b.smallest() for b in self._baselines)])

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """The fastest for the budget; None where neither the model nor a baseline has a plan."""
        proposed = [self._solve(budget_bytes), *(b.fastest(budget_bytes) for b in self._baselines)]
        return self._placer.fastest_of(proposed, budget_bytes)

    def bound_seconds(self, budget_bytes: int) -> float:
        """No plan of the chain's options is faster, whatever kernels it takes."""
        if self._quickest is None:
            problem, self._quickest = self._placer.problem, self._model.chain
            if problem.kernels is Kernels.FIT:
                self._quickest = chain_model(self._graph, problem.costs, [fastest(problem.costs)]).chain
        return chain_bound_seconds(self._quickest, budget_bytes - background_bytes(self._graph))

    def _solve(self, budget_bytes: int) -> PlacedOrder | None:
        """The optimal plan for the budget; read off the same table for less while placement needs more than what is live."""
        chain, room = self._model.chain, budget_bytes - background_bytes(self._graph)
        portfolio = make_portfolio(chain, room)
        for attempt in range(ATTEMPTS):
            solution = portfolio.solve(room) if room > 0 else None
            if solution is None:
                logger.info("chain: no plan for %d bytes beside the state", room)
                return None
            placed = self._place(solution.steps, budget_bytes)
            over = placed.end - budget_bytes
            if over <= 0:
                return placed
            logger.info("chain: the plan for %d bytes beside the state is %d bytes over when placed", room, over)
            # Of few blocks many plans are looked at; of many the one that needs as much less as this is over.
            less = (over << attempt) >> 3 if self._is_short else max(over, (room >> 12) << attempt)
            room = min(simulate_chain(chain, solution.steps)[0], room) - max(less, 1)
        return None
