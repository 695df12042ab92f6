"""The strategies that move tensors out: which order of operations runs, which cache decides, with which kernels.

`offload` runs every operation once, in the graph's order. `superneurons` also drops outputs of cheap operations and
computes them again, by one of the paper's three rules (`offload.recompute`). `stream` does both, follows the optimal
chain plans of budgets around its own, and may leave part of the state outside the arena. Then the state of the first
blocks stays, parameters before state of the optimizer, as these would move most. What does not fit beside all that is
moved out.

What is tried for a budget is listed by `offload_candidates`. Each order is first scheduled with one layout, rule of
eviction and choice of kernels; the fastest orders are then scheduled with all of them. `ladder` has smaller budgets
searched too, so that a larger one gets no slower plan.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...layers.graph import STATE
from ...memory.sizes import format_size
from ..layout.kernels import KernelChoice
from ..layout.lifetimes import Lifetimes
from ..layout.placer import PlacedOrder, Placer
from ..offload.cache import CacheSchedule, EvictionRule, schedule_cache
from ..offload.recompute import Recomputation
from ..offload.streamed_state import find_first_address, keep_state
from ..offload.transfers import insert_moves
from ..plan.state_layout import StateLayout
from ..plan.steps import NO_TENSOR, PAGE
from .chain import ChainStrategy
from .ladder import Ladder
from .offload_candidates import Candidate, Candidates
from .strategy import Strategy, StrategyName

logger = logging.getLogger(__name__)

KEPT = 2
"""So many orders, the fastest of the first round, are scheduled in all ways."""
FIRST_TRIED = 3
"""Layouts of the state are listed from the one on in which the least stays. All orders are first tried with the layout
a third of the way along the list: its length divided by this."""
MOST_OPS_TO_DESCEND = 300
"""Up to so many operations of a graph the plan of least memory is searched again for what it takes, while it falls."""
PARTS = 16
"""Where the plan of least memory puts more outside than may be there, ever more sixteenths of it are kept inside."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to run a step that fits the budget that is searched.

    Attributes:
        seconds: how long the step takes.
        name: what the log calls the order.
        order: operations.
        choose: the kernel of each operation.
        state: where the state lies.
        rule: which instance leaves the arena first.
    """

    seconds: float
    name: str
    order: Sequence[int]
    choose: KernelChoice
    state: StateLayout
    rule: EvictionRule


class _Search:
    """The ways that were tried for a budget, and the fastest plan of them; the others go, as they may be large.

    Args:
        strategy: places what is tried.
        budget_bytes: for which ways are tried.
    """

    def __init__(self, strategy: OffloadStrategy, budget_bytes: int) -> None:
        self._strategy, self._budget = strategy, budget_bytes
        self.ways: list[_Way] = []
        self.best: PlacedOrder | None = None
        self._least = math.inf

    def attempt(self, candidate: Candidate, rule: EvictionRule) -> None:
        """Try a candidate, unless it were not the fastest even if it never waited."""
        if candidate.seconds >= self._least:
            return
        seconds, placed = self._strategy.try_candidate(candidate, rule, self._budget)
        if placed is not None:
            self.ways.append(_Way(seconds, candidate.name, candidate.order, candidate.choose, candidate.state, rule))
        if seconds < self._least:
            self.best, self._least = placed, seconds

    def list_fastest(self, count: int) -> list[_Way]:
        """List the fastest ways."""
        return heapq.nsmallest(count, self.ways, key=lambda way: way.seconds)


class OffloadStrategy(Strategy):
    """Proposes orders with moves.

    Args:
        placer: of the graph.
        strategy: its name, for the log; its detail is the rule of eviction, None takes the better.
        recomputation: how outputs of cheap operations that are dropped come back; None drops none.
        streams: whether state may be left outside the arena.
        chain: gives the chain plans that are tried.
    """

    def __init__(
        self,
        placer: Placer,
        strategy: StrategyName,
        *,
        recomputation: Recomputation | None = None,
        streams: bool = False,
        chain: ChainStrategy | None = None,
    ) -> None:
        self._placer, self._strategy, self._streams = placer, strategy, streams
        self._candidates = Candidates(placer, recomputation, streams, chain)
        self._rules = list(EvictionRule) if strategy.detail is None else [EvictionRule(strategy.detail)]

    def smallest(self) -> PlacedOrder:
        """Return the plan of least memory that puts no more outside than may be there.

        Where none does, it is the one that puts the least there, which the planner refuses.
        """
        return self._smallest

    @cached_property
    def _smallest(self) -> PlacedOrder:
        placed = self._find_smallest(self._candidates.lay_out(0), 0)
        if not self._placer.is_allowed_outside(placed):
            tried = [self._find_allowed(states) for states in self._list_limited()]
            placed = self._placer.choose_smallest([placed, *(found for found in tried if found is not None)])
        if len(self._placer.problem.graph.ops) > MOST_OPS_TO_DESCEND:
            return placed
        # The order that is held for the least before anything is placed is not always the one that ends lowest.
        while (found := self._find_fastest(placed.end)) is not None and found.end < placed.end:
            placed = found
        return placed

    def _list_limited(self) -> list[Iterator[tuple[StateLayout, int]]]:
        """List ways to put less outside, each a series that takes ever more of the arena: layouts, and spare bytes."""
        graph, last = self._placer.problem.graph, self._candidates.lay_out(0)
        ways: list[Iterator[tuple[StateLayout, int]]] = []
        if self._streams:
            total = sum(t.nbytes for t in graph.with_role(*STATE))
            last = keep_state(graph, total)
            ways.append((keep_state(graph, total * n // PARTS), 0) for n in range(1, PARTS + 1))
        # Whole pages for all that may move can take twice the bytes of an order that moves nothing.
        whole = self._placer.place_order(self._candidates.own_order).end
        ways.append((last, whole * n // PARTS) for n in range(2 * PARTS + 1))
        return ways

    def _find_allowed(self, states: Iterator[tuple[StateLayout, int]]) -> PlacedOrder | None:
        """Return the first plan of a series that puts no more outside than may be there."""
        found = (self._find_smallest(state, spare) for state, spare in states)
        return next(filter(self._placer.is_allowed_outside, found), None)

    def _find_smallest(self, state: StateLayout, spare_bytes: int) -> PlacedOrder:
        """Return the plan of least memory with one layout of the state, and with so many bytes more than the least."""
        candidates = [
            self._candidates.make("least memory", order, self._placer.choose, state)
            for order in self._candidates.list_least_orders()
        ]
        least = min(candidates, key=lambda candidate: candidate.uses.least_bytes())
        del candidates  # a deep network's take tens of MiB
        end = find_first_address(least.state) + least.uses.least_bytes() + spare_bytes
        found = [placed for rule in self._rules if (placed := self.place_candidate(least, rule, end)) is not None]
        allowed = [placed for placed in found if self._placer.is_allowed_outside(placed)] or found
        return min(allowed, key=lambda placed: (placed.end, sum(placed.lifetimes.copies.nbytes)))

    @cached_property
    def _ladder(self) -> Ladder:
        return Ladder(self._placer, self._smallest.end, self._find_fastest)

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Return the fastest plan for the budget that is found; None where none fits."""
        if self._candidates.are_slow:
            return self._find_fastest(budget_bytes)
        return self._ladder.find_fastest(budget_bytes)

    def _find_fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Search for one budget: try all orders with one layout of the state, and the fastest of them in all ways."""
        candidates, search = self._candidates, _Search(self, budget_bytes)
        layouts = candidates.list_layouts(budget_bytes)
        # Where no order works with the first layout, such as for what it puts outside, one may with another.
        others = [layout for layout in reversed(layouts) if layout is not layouts[len(layouts) // FIRST_TRIED]]
        for first_tried in (layouts[len(layouts) // FIRST_TRIED], *others):
            for name, order in candidates.list_orders(budget_bytes):
                search.attempt(candidates.make(name, order, self._placer.choose, first_tried), self._rules[0])
            if search.ways:
                break
        for way in search.list_fastest(1 if candidates.are_slow else KEPT):
            for choose in candidates.list_choices(budget_bytes):
                for state in layouts:
                    candidate = candidates.make(way.name, way.order, choose, state)
                    for rule in self._rules:
                        if (choose, state, rule) != (self._placer.choose, first_tried, self._rules[0]):
                            search.attempt(candidate, rule)
        return search.best

    def try_candidate(
        self, candidate: Candidate, rule: EvictionRule, budget_bytes: int
    ) -> tuple[float, PlacedOrder | None]:
        """Place a candidate and return its seconds with it; infinity and None where it does not fit."""
        placed, seconds = self.place_candidate(candidate, rule, budget_bytes), math.inf
        if placed is None:
            words = "does not fit"
        elif not self._placer.is_allowed_outside(placed):
            words, placed = f"puts {placed.outside_end} bytes outside", None
        else:
            seconds = self._placer.seconds(placed.lifetimes)
            words = f"takes {seconds:.4g} s"
        state = candidate.state.nbytes
        logger.info("%s: %s, %d bytes of state, %s %s", self._strategy, candidate.name, state, rule.value, words)
        return seconds, placed

    def place_candidate(self, candidate: Candidate, rule: EvictionRule, budget_bytes: int) -> PlacedOrder | None:
        """Schedule the moves of a candidate and place it; return None where it does not fit."""
        first, state, uses = find_first_address(candidate.state), candidate.state, candidate.uses
        schedule = schedule_cache(uses, first, budget_bytes // PAGE * PAGE, rule, candidate.timing)
        if schedule is None:
            return None
        order = insert_moves(candidate.order, candidate.lifetimes, schedule, candidate.timing)
        lifetimes = self._placer.find_lifetimes(order, candidate.choose, state)
        addresses = self._collect_addresses(candidate, schedule, lifetimes)
        leaving = "the least recently used leave" if rule is EvictionRule.LRU else "the farthest next use leaves"
        note = f"{candidate.name}, {leaving} first"
        if state.outside:
            note += f", {format_size(state.outside_nbytes)} of the state outside"
        return replace(self._placer.place_at(order, lifetimes, addresses, state, settled=True), note=note)

    def _collect_addresses(self, candidate: Candidate, schedule: CacheSchedule, lifetimes: Lifetimes) -> list[int]:
        """Collect the addresses of all instances of the order with moves, whose lifetimes are given."""
        first, state, uses = find_first_address(candidate.state), candidate.state, candidate.uses
        # Each time that a tensor is brought to the arena it is a new instance: its addresses in that order.
        addresses_of: dict[int, list[int]] = {}
        for instance, tensor in enumerate(candidate.lifetimes.tensor):
            if instance in uses.fixed:
                addresses_of.setdefault(tensor, []).append(first + uses.fixed[instance])
            else:
                addresses_of.setdefault(tensor, []).extend(schedule.addresses.get(instance, ()))
        names = [t.name for t in self._placer.problem.graph.tensors]
        following = {tensor: iter(addresses) for tensor, addresses in addresses_of.items()}
        return [
            state.addresses[names[t]] if t != NO_TENSOR and names[t] in state.addresses else next(following[t])
            for t in lifetimes.tensor
        ]
