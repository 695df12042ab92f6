"""The baselines `sequential` and `revolve` on the blocks of a graph: which number of segments or slots they take.

Every block saves all that its backward pass reads and repeats nothing within itself; the pattern alone decides what
runs again. In a chain of up to `TRIED` blocks every number is tried as it would run. In a longer chain at most `TRIED`
numbers are, those that no other number beats in both seconds and bytes when they are replayed on the chain. The
strategy proposes the fastest order that fits when it is placed and has its kernels; of two equally fast ones, the
smaller.

Source: the comparison in Herrmann, Beaumont et al., arXiv 1911.13214, section 5.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ...memory.errors import ConfigError
from ..blocks.cut import split_blocks
from ..blocks.model import ChainModel, expand, model_chain
from ..chain.revolve import count_most_slots, write_revolve_steps
from ..chain.sequential import check_segments, count_most_segments, write_sequential_steps
from ..chain.simulate import simulate_chain
from ..chain.types import Chain, ChainStep
from ..layout.lifetimes import Lifetimes, drop_dead_recomputations
from ..layout.placer import PlacedOrder, Placer
from ..plan.steps import Run
from .strategy import Strategy, StrategyKind, StrategyName

logger = logging.getLogger(__name__)

TRIED = 64
"""Most numbers of segments or slots that are tried as they would run."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """All in which one baseline differs from another.

    Attributes:
        write_steps: writes the plan of a chain with a number of segments or slots.
        count_most: returns the largest number that makes sense for a chain.
        unit: what the number counts, for people.
    """

    write_steps: Callable[[Chain, int], tuple[ChainStep, ...]]
    count_most: Callable[[Chain], int]
    unit: str


SEGMENTS = Pattern(write_sequential_steps, count_most_segments, "segments")
SLOTS = Pattern(write_revolve_steps, count_most_slots, "slots")


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


def model_plain_chain(placer: Placer) -> ChainModel:
    """Make the chain of a graph with one way through each block: all that its backward pass reads is saved."""
    return model_chain(placer.problem.graph, placer.problem.costs, [placer.choose], search=False)


def list_candidates(chain: Chain, pattern: Pattern, number: int | None = None) -> list[Candidate]:
    """List the numbers worth trying, the fastest first, of equally fast ones the one in least memory first.

    Args:
        chain: the chain to plan.
        pattern: of the baseline.
        number: the only number that is tried; None for all that make sense.

    Raises:
        ConfigError: more segments are asked for than the chain has blocks.
    """
    numbers = range(1, pattern.count_most(chain) + 1) if number is None else [number]
    found = []
    for tried in numbers:
        peak, seconds = simulate_chain(chain, pattern.write_steps(chain, tried))
        found.append(Candidate(tried, seconds, peak))
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


@dataclass(frozen=True, slots=True)
class _TimedCandidate:
    """A candidate as it would run, without addresses.

    Attributes:
        number: of segments or slots.
        order: operations; what a rerun would make and nobody read is left out, so it may be faster than replayed.
        lifetimes: the instances of the order.
        seconds: time of a step with the kernels that memory is planned with.
        live_peak_bytes: the bytes below which no placement ends.
    """

    number: int
    order: list[int]
    lifetimes: Lifetimes
    seconds: float
    live_peak_bytes: int


class BaselineStrategy(Strategy):
    """Proposes the orders of one baseline.

    Args:
        placer: of the graph.
        pattern: of the baseline.
        number: the only number of segments or slots that is tried; None for all that make sense.
        model: what `model_plain_chain` makes, where it is at hand.
    """

    def __init__(
        self, placer: Placer, pattern: Pattern, number: int | None = None, model: ChainModel | None = None
    ) -> None:
        self._placer, self._pattern, self._number, self._given_model = placer, pattern, number, model
        self._found: dict[int, _TimedCandidate] = {}
        self._placed: dict[int, PlacedOrder] = {}

    @cached_property
    def _model(self) -> ChainModel:
        return self._given_model or model_plain_chain(self._placer)

    @cached_property
    def _candidates(self) -> list[Candidate]:
        return list_candidates(self._model.chain, self._pattern, self._number)

    @cached_property
    def _by_seconds(self) -> list[_TimedCandidate]:
        """All candidates, the fastest first, of equally fast ones the one in least memory first."""
        found = [self._find_candidate(candidate.number) for candidate in self._candidates]
        return sorted(found, key=lambda c: (float(f"{c.seconds:.9g}"), c.live_peak_bytes, c.number))

    def _find_candidate(self, number: int) -> _TimedCandidate:
        if number not in self._found:
            graph, model, placer = self._placer.problem.graph, self._model, self._placer
            steps = self._pattern.write_steps(model.chain, number)
            order = drop_dead_recomputations(graph, expand(graph, model, steps))
            lifetimes = placer.find_lifetimes(order)
            live = int(lifetimes.live_bytes().max())
            self._found[number] = _TimedCandidate(number, order, lifetimes, placer.seconds(lifetimes), live)
        return self._found[number]

    def _place(self, candidate: _TimedCandidate) -> PlacedOrder:
        if candidate.number not in self._placed:
            placed = self._placer.place_lifetimes(candidate.order, candidate.lifetimes)
            self._placed[candidate.number] = replace(placed, note=f"{candidate.number} {self._pattern.unit}")
        return self._placed[candidate.number]

    def smallest(self) -> PlacedOrder:
        """Return the plan of least memory; for a long chain the one that needs the least by the chain's numbers."""
        if len(self._model.chain.blocks) > TRIED:
            return self._place(self._find_candidate(self._candidates[-1].number))
        by_bytes = sorted(self._by_seconds, key=lambda c: (c.live_peak_bytes, c.number))
        best = self._place(by_bytes[0])
        for candidate in by_bytes[1:]:
            if candidate.live_peak_bytes < best.end:
                best = min(best, self._place(candidate), key=lambda placed: placed.end)
        return best

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Return the fastest order that fits, with the kernels that fit beside it; None where none fits."""
        costs = self._placer.problem.costs
        best, least = None, math.inf
        for placed in self._list_fitting(budget_bytes):
            if sum(costs.fastest_seconds(step.op) for step in placed.lifetimes.steps if isinstance(step, Run)) >= least:
                break
            seconds = self._placer.seconds(self._placer.finish(placed, budget_bytes).lifetimes)
            if seconds < least:
                best, least = placed, seconds
        return best

    def _list_fitting(self, budget_bytes: int) -> Iterator[PlacedOrder]:
        for candidate in self._by_seconds:
            live = candidate.live_peak_bytes
            if live <= budget_bytes and self._place(candidate).end <= budget_bytes:
                yield self._place(candidate)
            else:
                logger.info("%d %s do not fit, %d bytes are live", candidate.number, self._pattern.unit, live)


def _read_segments(name: str, text: str) -> int:
    if re.fullmatch("[0-9]{1,9}", text) is None or int(text) < 1:
        near = f"{name}:1" if re.fullmatch("-?[0-9]+", text) else ""
        hint = f"{near!r} is the nearest." if near else f"For example '{name}:4'."
        expected = f"{name}:K with a whole number K of segments, at least 1"
        raise ConfigError("strategy", expected, repr(f"{name}:{text}"), f"{hint} {name!r} alone takes the best K.")
    return int(text)


def _make_sequential(placer: Placer, name: StrategyName) -> Strategy:
    number = None if name.detail is None else int(name.detail)
    if number is not None:
        check_segments(len(split_blocks(placer.problem.graph)) - 1, number)
    return BaselineStrategy(placer, SEGMENTS, number)


def _make_revolve(placer: Placer, name: StrategyName) -> Strategy:
    return BaselineStrategy(placer, SLOTS)


SEQUENTIAL = StrategyKind(
    "sequential", _make_sequential, natural_first=False, read_detail=_read_segments, details=("K",)
)
REVOLVE = StrategyKind("revolve", _make_revolve, natural_first=False)
