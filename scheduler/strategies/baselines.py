"""The baselines `sequential` and `revolve` on the blocks of a graph: which number of segments or slots to take.

Every block saves all that its backward pass reads and repeats nothing within itself; the pattern alone decides what runs
again. Of chains of up to `TRIED` blocks each number is drafted as it would run; of longer ones only those numbers that
no other beats in seconds and bytes when replayed on the chain, and at most `TRIED` of them. Taken is the fastest that
fits when placed, with the kernels that fit beside it; of equals the one in least memory.

Source: the comparison in Herrmann, Beaumont et al., arXiv 1911.13214, section 5.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from ..blocks.model import ChainModel, chain_model, expand
from ..chain.revolve import most_slots, revolve_steps
from ..chain.sequential import sequential_steps
from ..chain.simulate import simulate_chain
from ..chain.types import Chain, ChainStep
from ..layout.lifetimes import Lifetimes, without_dead_recomputations
from ..layout.placer import PlacedOrder, Placer
from ..plan.steps import Run
from .names import StrategyName

logger = logging.getLogger(__name__)

TRIED = 64
"""Numbers of segments or slots that are drafted."""

_Write: TypeAlias = "Callable[[Chain, int], tuple[ChainStep, ...]]"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A number of segments or slots, replayed on the chain.

    Attributes:
        number: of segments or slots.
        seconds: of a step.
        peak_bytes: of the chain, without what lives beside it.
    """

    number: int
    seconds: float
    peak_bytes: int


def plain_model(placer: Placer) -> ChainModel:
    """The chain of a graph with one way through each block: all that its backward pass reads is saved."""
    return chain_model(placer.problem.graph, placer.problem.costs, [placer.choose], search=False)


def candidates(chain: Chain, strategy: StrategyName) -> list[Candidate]:
    """The numbers worth drafting, the fastest first, of equals the one in least memory.

    Raises:
        ConfigError: more segments than blocks.
    """
    count = len(chain.blocks) - 1
    if strategy.segments is not None:
        numbers = range(strategy.segments, strategy.segments + 1)
    else:
        numbers = range(1, (max(count, 1) if strategy.name == "sequential" else most_slots(chain)) + 1)
    found = []
    for number in numbers:
        peak, seconds = simulate_chain(chain, _write(strategy)(chain, number))
        found.append(Candidate(number, seconds, peak))
    found.sort(key=lambda c: (c.seconds, c.peak_bytes, c.number))
    if len(found) <= TRIED:
        return found
    least, front = found[0].peak_bytes + 1, []
    for candidate in found:
        if candidate.peak_bytes < least:
            least = candidate.peak_bytes
            front.append(candidate)
    if len(front) <= TRIED:
        return front
    return [front[i * (len(front) - 1) // (TRIED - 1)] for i in range(TRIED)]


def _write(strategy: StrategyName) -> _Write:
    return sequential_steps if strategy.name == "sequential" else revolve_steps


@dataclass(frozen=True, slots=True)
class _TimedCandidate:
    """A candidate as it would run, without addresses.

    Attributes:
        number: of segments or slots.
        order: of operations; what a rerun makes and nobody reads is left out, so it may be faster than replayed.
        draft: its instances.
        seconds: with the kernels that memory is planned with.
        live_peak_bytes: no placement needs less.
    """

    number: int
    order: list[int]
    lifetimes: Lifetimes
    seconds: float
    live_peak_bytes: int


class BaselineStrategy:
    """Proposes the orders of one baseline.

    Args:
        placer: of the graph.
        strategy: `sequential` or `revolve`.
        model: from `plain_model`.

    Raises:
        ConfigError: more segments than blocks.
    """

    def __init__(self, placer: Placer, strategy: StrategyName, model: ChainModel) -> None:
        self._placer, self._strategy, self._model = placer, strategy, model
        self._candidates = candidates(model.chain, strategy)
        self._drafts: dict[int, _TimedCandidate] = {}
        self._placed: dict[int, PlacedOrder] = {}

    @cached_property
    def _by_seconds(self) -> list[_TimedCandidate]:
        """All candidates, the fastest first, of equals the one in least memory."""
        found = [self._find_candidate(candidate.number) for candidate in self._candidates]
        return sorted(found, key=lambda d: (float(f"{d.seconds:.9g}"), d.live_peak_bytes, d.number))

    def _find_candidate(self, number: int) -> _TimedCandidate:
        if number not in self._drafts:
            graph, model, placer = self._placer.problem.graph, self._model, self._placer
            steps = _write(self._strategy)(model.chain, number)
            order = without_dead_recomputations(graph, expand(graph, model, steps))
            lifetimes = placer.find_lifetimes(order)
            live = int(lifetimes.live_bytes().max())
            self._drafts[number] = _TimedCandidate(number, order, lifetimes, placer.seconds(lifetimes), live)
        return self._drafts[number]

    def _place(self, candidate: _TimedCandidate) -> PlacedOrder:
        if candidate.number not in self._placed:
            words = "segments" if self._strategy.name == "sequential" else "slots"
            placed = self._placer.place_lifetimes(candidate.order, candidate.lifetimes)
            self._placed[candidate.number] = replace(placed, note=f"{candidate.number} {words}")
        return self._placed[candidate.number]

    def smallest(self) -> PlacedOrder:
        """The plan of least memory; of long chains the one that needs the least by the chain's numbers."""
        if len(self._model.chain.blocks) > TRIED:
            return self._place(self._find_candidate(self._candidates[-1].number))
        by_bytes = sorted(self._by_seconds, key=lambda d: (d.live_peak_bytes, d.number))
        best = self._place(by_bytes[0])
        for candidate in by_bytes[1:]:
            if candidate.live_peak_bytes < best.end:
                best = min(best, self._place(candidate), key=lambda placed: placed.end)
        return best

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """The fastest that fits once it has the kernels that fit beside it; None where none fits."""
        costs = self._placer.problem.costs
        best, least = None, math.inf
        for placed in self._that_fit(budget_bytes):
            if sum(costs.fastest_seconds(step.op) for step in placed.lifetimes.steps if isinstance(step, Run)) >= least:
                break
            seconds = self._placer.seconds(self._placer.finish(placed, budget_bytes).lifetimes)
            if seconds < least:
                best, least = placed, seconds
        return best

    def _that_fit(self, budget_bytes: int) -> Iterator[PlacedOrder]:
        for candidate in self._by_seconds:
            live = candidate.live_peak_bytes
            if live <= budget_bytes and self._place(candidate).end <= budget_bytes:
                yield self._place(candidate)
            else:
                logger.info("%s: %d does not fit, %d bytes are live", self._strategy, candidate.number, live)
