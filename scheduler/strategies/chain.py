"""`chain`: the orders of the optimal plan of the network as a chain of blocks.

The plan is solved for the bytes beside the state, expanded to operations and placed. Where the placement needs more
than the budget, a plan for fewer bytes is read off the same table and placed anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from ..blocks.model import ChainModel, choose_kernels, count_background_bytes, expand, model_chain
from ..chain.bound import chain_bound_seconds
from ..chain.portfolio import make_portfolio
from ..chain.short_plans import find_short_minimum_plan
from ..chain.simulate import simulate_chain
from ..chain.types import Chain, ChainStep
from ..layout.kernels import Kernels, choose_fast_gradients, choose_fastest
from ..layout.lifetimes import drop_dead_recomputations
from ..layout.placer import ATTEMPTS, PlacedOrder, Placer
from ..plan.steps import Run
from .baselines import SEGMENTS, SLOTS, BaselineStrategy, model_plain_chain
from .strategy import Strategy, StrategyKind, StrategyName

logger = logging.getLogger(__name__)

SHORT = 24
"""Up to so many blocks the orders of the baselines are looked at too."""
SMALL_STEP = 8
"""A short chain is solved again for this part of the missing bytes less, and then for twice as many each time."""
LEAST_STEP = 4096
"""A long chain is solved again for at least this part of its bytes less, and then for twice as many each time."""
SMALL_GRAPH = 300
"""Up to so many operations plans for fewer bytes are looked at although one fits."""
MORE = 8
"""So many of them."""


class ChainStrategy(Strategy):
    """Proposes the orders of the chain model and, for a network of few blocks, those of the baselines.

    The model counts every rerun of a block whole, and the bytes of two blocks as if they never shared memory. The order
    that follows from its plan may leave operations out and share bytes. So in a network of few blocks an order that the
    model holds for worse can be better.
    """

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._graph = placer.problem.graph

    @cached_property
    def _model(self) -> ChainModel:
        problem, choices = self._placer.problem, [self._placer.choose]
        if problem.kernels is Kernels.FIT:
            choices.append(choose_fast_gradients(problem.graph, problem.costs, self._placer.choose))
        return model_chain(problem.graph, problem.costs, choices)

    @cached_property
    def _fastest_chain(self) -> Chain:
        """The chain with the fastest kernels of all, which no plan of its options can beat."""
        problem = self._placer.problem
        if problem.kernels is not Kernels.FIT:
            return self._model.chain
        return model_chain(self._graph, problem.costs, [choose_fastest(problem.costs)]).chain

    @property
    def _is_short(self) -> bool:
        return len(self._model.blocks) <= SHORT

    @cached_property
    def _baselines(self) -> list[BaselineStrategy]:
        if not self._is_short:
            return []
        plain = model_plain_chain(self._placer)
        return [BaselineStrategy(self._placer, pattern, model=plain) for pattern in (SEGMENTS, SLOTS)]

    @cached_property
    def _background_bytes(self) -> int:
        return count_background_bytes(self._graph)

    def _expand(self, steps: Sequence[ChainStep]) -> list[int]:
        return drop_dead_recomputations(self._graph, expand(self._graph, self._model, steps))

    def _place(self, steps: Sequence[ChainStep], enough: int, known: PlacedOrder | None = None) -> PlacedOrder:
        """Place the order that steps stand for; `known` is what was last placed so, and is returned for its order."""
        order, choose = self._expand(steps), choose_kernels(self._model, steps)
        if known is not None and order == known.order:
            runs = (step for step in known.lifetimes.steps if isinstance(step, Run))
            if all(choose(step.op)[0] == step.kernel for step in runs):
                return known
        return replace(self._placer.place_order(order, choose, enough), note="an optimal chain plan")

    def find_order_within(self, room_bytes: int) -> list[int] | None:
        """Return the fastest order whose activations take at most so many bytes by the chain's count; None without."""
        solution = make_portfolio(self._model.chain, room_bytes).solve(room_bytes) if room_bytes > 0 else None
        return None if solution is None else self._expand(solution.steps)

    def smallest(self) -> PlacedOrder:
        """Return the plan of least memory."""
        chain = self._model.chain
        steps = find_short_minimum_plan(chain)
        placed = [self._place(steps, 0)]
        if self._is_short:
            room, _ = simulate_chain(chain, steps)
            solution = make_portfolio(chain, room).solve(room)
            if solution is not None:
                placed.append(self._place(solution.steps, 0, placed[0]))
        return self._placer.choose_smallest([*placed, *(baseline.smallest() for baseline in self._baselines)])

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Return the fastest plan for the budget; None where neither the model nor a baseline has one."""
        proposed = [*self._solve(budget_bytes), *(b.fastest(budget_bytes) for b in self._baselines)]
        return self._placer.choose_fastest(proposed, budget_bytes)

    def chain_bound_seconds(self, budget_bytes: int) -> float:
        """Return the seconds below which no plan of the chain's options is, whatever kernels it takes."""
        return chain_bound_seconds(self._fastest_chain, budget_bytes - self._background_bytes)

    def _solve(self, budget_bytes: int) -> Iterator[PlacedOrder]:
        """Solve the chain for the budget, and for fewer bytes as long as the placement needs more than the budget.

        Of a small graph the plans for still fewer bytes are looked at too: by operations one of them can be faster.
        """
        chain, room = self._model.chain, budget_bytes - self._background_bytes
        portfolio, doublings = make_portfolio(chain, room), 1
        placed: PlacedOrder | None = None
        more = MORE if len(self._graph.ops) <= SMALL_GRAPH else 1
        for _ in range(ATTEMPTS + more):
            solution = portfolio.solve(room) if room > 0 else None
            if solution is None:
                logger.info("chain: no plan for %d bytes beside the state", room)
                return
            placed = self._place(solution.steps, budget_bytes, placed)
            over = placed.end - budget_bytes
            needed, _ = simulate_chain(chain, solution.steps)
            if over <= 0:
                yield placed
                more -= 1
                if not more:
                    return
                room = min(needed, room) - 1
                continue
            logger.info("chain: the plan for %d bytes beside the state is %d bytes over when placed", room, over)
            # Of a short chain many plans are looked at; of a long one, whose plans take longer to place, few.
            less = over * doublings // SMALL_STEP if self._is_short else max(over, room // LEAST_STEP * doublings)
            room = min(needed, room) - max(less, 1)
            doublings *= 2


def _make_chain(placer: Placer, name: StrategyName) -> Strategy:
    return ChainStrategy(placer)


CHAIN = StrategyKind("chain", _make_chain, least_without_link=True)
