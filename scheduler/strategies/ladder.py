"""More memory is no slower plan: what is found for smaller budgets is a candidate for every larger one.

What a search finds rises and falls by chance with the budget, as what it tries depends on it. So smaller budgets are
searched too: the rungs of a ladder, which depend on the graph and its least budget alone. A plan is never slower than
that of a rung below. In a small arena, where a page is a large part, budgets are rounded down to a rung, so no larger
one gets a slower plan at all; elsewhere a search for the budget itself is worth more than that. The more operations a
graph has, the longer takes a search and the fewer rungs there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..blocks.bounds import knapsack_seconds
from ..layout.kernels import Kernels, choose_fastest
from ..layout.placer import PlacedOrder, Placer
from ..plan.steps import PAGE

RUNG_OPS = 4000
"""A rung is higher than the one below by as large a part of it as the operations are of this number, and by a page at
least."""
SMALL_ARENA = 2**20
"""Up to so many bytes of the least budget, every budget is rounded down to a rung."""
ROUNDING = 1 + 1e-12
"""Sums of seconds that are equal may differ by so much."""


class Ladder:
    """Finds the fastest plan of a budget and of all rungs below.

    Args:
        placer: of the graph.
        least_bytes: the lowest rung.
        search: finds the fastest plan for one budget; None where it finds none.
    """

    def __init__(self, placer: Placer, least_bytes: int, search: Callable[[int], PlacedOrder | None]) -> None:
        self._placer, self._least, self._search = placer, least_bytes, search
        self._found: dict[int, tuple[float, PlacedOrder | None]] = {}
        problem = placer.problem
        self._rise = len(problem.graph.ops) / RUNG_OPS
        choose = placer.choose if problem.kernels is Kernels.FIXED else choose_fastest(problem.costs)
        self._floor = math.fsum(problem.costs.kernels[op.id][choose(op.id)[0]].seconds for op in problem.graph.ops)

    def find_fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Return the fastest plan; of equally fast ones that of the highest rung. None where none is found."""
        rungs = self._list_rungs(budget_bytes)
        least, best = math.inf, None
        if rungs and self._least > SMALL_ARENA:
            least, best = self._measure(self._search(budget_bytes))
        for rung in reversed(rungs):
            if least <= self._find_bound(rung):
                break
            if rung not in self._found:
                self._found[rung] = self._measure(self._search(rung))
            seconds, placed = self._found[rung]
            if seconds < least:
                least, best = seconds, placed
        return best

    def _measure(self, placed: PlacedOrder | None) -> tuple[float, PlacedOrder | None]:
        return (math.inf if placed is None else self._placer.seconds(placed.lifetimes)), placed

    def _find_bound(self, budget_bytes: int) -> float:
        """Find the seconds below which nothing within a budget is."""
        problem = self._placer.problem
        return max(self._floor, knapsack_seconds(problem.graph, problem.costs, budget_bytes)) * ROUNDING

    def _list_rungs(self, budget_bytes: int) -> list[int]:
        """List the rungs up to a budget."""
        rungs, rung = [], self._least
        while rung <= budget_bytes:
            rungs.append(rung)
            rung = max(int(rung * (1 + self._rise)) // PAGE, rung // PAGE + 1) * PAGE
        return rungs
