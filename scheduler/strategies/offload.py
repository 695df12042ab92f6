"""The strategies that move tensors out: which order of operations runs, which cache decides, with which kernels.

`offload` runs every operation once, in the graph's order. `superneurons` also drops outputs of cheap operations and
computes them again, by one of the paper's three rules (`offload.recompute`). `stream` does both, follows the optimal
chain plans of budgets around its own, and may leave part of the state outside the arena. Then the state of the first
blocks stays, parameters before state of the optimizer, as these would move most. What does not fit beside all that is
moved out.

Several numbers of segments to drop, and several shares of the state to keep, are tried. Each order is first scheduled
with one layout, rule of eviction and choice of kernels; the fastest orders are then scheduled with all of them. The
fastest plan of all is proposed.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...layers.graph import STATE
from ...layers.kinds import KINDS
from ...memory.sizes import format_size
from ..layout.kernels import KernelChoice, Kernels, choose_fastest_within
from ..layout.lifetimes import Lifetimes
from ..layout.placer import PlacedOrder, Placer
from ..offload.cache import CacheSchedule, EvictionRule, Timing, schedule_cache
from ..offload.recompute import Recomputation, Segmented, write_recomputing_order
from ..offload.segments import find_affordable, find_cheap_segments, take_first_segments
from ..offload.streamed_state import find_first_address, keep_state
from ..offload.transfers import insert_moves
from ..offload.uses import UseTable
from ..plan.link import Link
from ..plan.state_layout import StateLayout
from ..plan.steps import NO_TENSOR, PAGE, Run
from .chain import ChainStrategy
from .strategy import Strategy, StrategyName

logger = logging.getLogger(__name__)

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the segments that are tried to be dropped."""
ROOMS = (0.7, 1.0, 1.5, 2.5)
"""Chain plans are tried whose activations take so many times the bytes beside the state."""
KEPT = 2
"""So many orders, the fastest of the first round, are scheduled in all ways."""
MANY = 4000
"""Above so many operations scheduling takes seconds: only all segments or none are dropped, and one order is kept."""
WORKSPACE_SHARE = 8
"""The workspace of a fast kernel takes at most this part of what is beside the state."""
FIRST_TRIED = 3
"""Layouts of the state are listed from the one on in which the least stays. All orders are first tried with the layout
a third of the way along the list: its length divided by this."""


PARTS = 16
"""Where the plan of least memory puts more outside than may be there, ever more sixteenths of it are kept inside."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An order with kernels, before anything moves.

    Attributes:
        name: what the log calls it.
        order: operations.
        choose: the kernel of each operation.
        lifetimes: instances of the order.
        uses: when each instance is used.
        timing: seconds of the operations, and the link.
        state: where the state lies.
    """

    name: str
    order: Sequence[int]
    choose: KernelChoice
    lifetimes: Lifetimes
    uses: UseTable
    timing: Timing
    state: StateLayout


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
        self._placer, self._strategy, self._chain = placer, strategy, chain
        self._recomputation, self._streams = recomputation, streams
        self._rules = list(EvictionRule) if strategy.detail is None else [EvictionRule(strategy.detail)]

    @property
    def _link(self) -> Link:
        link = self._placer.problem.costs.link
        assert link is not None, "the registry refuses strategies that move tensors where there is no link"
        return link

    @cached_property
    def _own_order(self) -> list[int]:
        return [op.id for op in self._placer.problem.graph.ops]

    @property
    def _many(self) -> bool:
        return len(self._placer.problem.graph.ops) > MANY

    @cached_property
    def _segments(self) -> Segmented[int]:
        return find_cheap_segments(self._placer.problem.graph)

    @cached_property
    def _smallest_state(self) -> StateLayout:
        """The layout with all large tensors outside that may be there."""
        problem = self._placer.problem
        return keep_state(problem.graph, 0) if self._streams else problem.state

    @cached_property
    def _least_room(self) -> int:
        """The bytes that the graph's own order needs beside that state, whatever the budget."""
        candidate = self._make_candidate("", self._own_order, self._placer.choose, self._smallest_state)
        return candidate.uses.least_bytes()

    @cached_property
    def _least_state(self) -> StateLayout:
        """The layout with all tensors outside that may be there at all."""
        problem = self._placer.problem
        return keep_state(problem.graph, 0, PAGE) if self._streams else problem.state

    def smallest(self) -> PlacedOrder:
        """Return the plan of least memory that puts no more outside than may be there.

        Where none does, it is the one that puts the least there, which the planner refuses.
        """
        placed = self._find_smallest(self._least_state, 0)
        if self._placer.is_allowed_outside(placed):
            return placed
        tried = [self._find_allowed(states) for states in self._list_limited()]
        return self._placer.choose_smallest([placed, *(found for found in tried if found is not None)])

    def _list_limited(self) -> list[Iterator[tuple[StateLayout, int]]]:
        """List ways to put less outside, each a series that takes ever more of the arena: layouts, and spare bytes."""
        graph, last = self._placer.problem.graph, self._least_state
        ways: list[Iterator[tuple[StateLayout, int]]] = []
        if self._streams:
            total = sum(t.nbytes for t in graph.with_role(*STATE))
            last = keep_state(graph, total)
            ways.append((keep_state(graph, total * n // PARTS), 0) for n in range(1, PARTS + 1))
        # Whole pages for all that may move can take twice the bytes of an order that moves nothing.
        whole = self._placer.place_order(self._own_order).end
        ways.append((last, whole * n // PARTS) for n in range(2 * PARTS + 1))
        return ways

    def _find_allowed(self, states: Iterator[tuple[StateLayout, int]]) -> PlacedOrder | None:
        """Return the first plan of a series that puts no more outside than may be there."""
        found = (self._find_smallest(state, spare) for state, spare in states)
        return next(filter(self._placer.is_allowed_outside, found), None)

    def _find_smallest(self, state: StateLayout, spare_bytes: int) -> PlacedOrder:
        """Return the plan of least memory with one layout of the state, and with so many bytes more than the least."""
        orders = [self._own_order]
        if self._recomputation is not None:
            orders.append(self._recompute(len(self._segments.segments), Recomputation.MEMORY_CENTRIC, 0))
        candidates = [self._make_candidate("least memory", o, self._placer.choose, state) for o in orders]
        least = min(candidates, key=lambda candidate: candidate.uses.least_bytes())
        del candidates, orders  # a deep network's take tens of MiB
        end = find_first_address(least.state) + least.uses.least_bytes() + spare_bytes
        found = [placed for rule in self._rules if (placed := self._place(least, rule, end)) is not None]
        allowed = [placed for placed in found if self._placer.is_allowed_outside(placed)] or found
        return min(allowed, key=lambda placed: (placed.end, sum(placed.lifetimes.copies.nbytes)))

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Return the fastest plan for the budget that is found; None where none fits."""
        layouts = self._list_layouts(budget_bytes)
        best, least = None, math.inf
        fitting: list[tuple[float, int, str, Sequence[int]]] = []
        # Where no order works with the first layout, such as for what it puts outside, one may with another.
        others = [layout for layout in reversed(layouts) if layout is not layouts[len(layouts) // FIRST_TRIED]]
        for first_tried in (layouts[len(layouts) // FIRST_TRIED], *others):
            for number, (name, order) in enumerate(self._list_orders(budget_bytes)):
                candidate = self._make_candidate(name, order, self._placer.choose, first_tried)
                seconds, placed = self._try(candidate, self._rules[0], budget_bytes)
                if placed is not None:
                    fitting.append((seconds, number, name, order))
                if seconds < least:
                    best, least = placed, seconds
                del candidate, placed  # a deep network's take tens of MiB: they go before the next ones are made
            if fitting:
                break
        for _, _, name, order in sorted(fitting)[: 1 if self._many else KEPT]:
            for choose in self._list_choices(budget_bytes):
                for state in layouts:
                    candidate = self._make_candidate(name, order, choose, state)
                    for rule in self._rules:
                        if (choose, state, rule) == (self._placer.choose, first_tried, self._rules[0]):
                            continue  # tried above
                        seconds, placed = self._try(candidate, rule, budget_bytes)
                        if seconds < least:
                            best, least = placed, seconds
                        del placed
                    del candidate
        return best

    def _try(self, candidate: _Candidate, rule: EvictionRule, budget_bytes: int) -> tuple[float, PlacedOrder | None]:
        """Place a candidate and return its seconds with it; infinity and None where it does not fit."""
        placed, seconds = self._place(candidate, rule, budget_bytes), math.inf
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

    def _list_choices(self, budget_bytes: int) -> list[KernelChoice]:
        problem = self._placer.problem
        if problem.kernels is not Kernels.FIT:
            return [self._placer.choose]
        room = budget_bytes - self._smallest_state.nbytes
        return [self._placer.choose, choose_fastest_within(problem.costs, room // WORKSPACE_SHARE)]

    def _list_orders(self, budget_bytes: int) -> Iterator[tuple[str, Sequence[int]]]:
        yield "nothing repeated", self._own_order
        if self._recomputation is not None:
            count = len(self._segments.segments)
            shares = FRACTIONS[-1:] if self._many else FRACTIONS[1:]
            for dropped in sorted({round(count * share) for share in shares} - {0}):
                order = self._recompute(dropped, self._recomputation, budget_bytes)
                yield f"{dropped} segments of cheap layers dropped", order
        if self._chain is not None:
            for times in (1.0,) if self._many else ROOMS:
                room = int(times * (budget_bytes - self._smallest_state.nbytes))
                chain_order = self._chain.find_order_within(room)
                if chain_order is not None and len(chain_order) > len(self._own_order):
                    yield f"the chain plan for {format_size(room)}", chain_order

    def _place(self, candidate: _Candidate, rule: EvictionRule, budget_bytes: int) -> PlacedOrder | None:
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

    def _collect_addresses(self, candidate: _Candidate, schedule: CacheSchedule, lifetimes: Lifetimes) -> list[int]:
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

    def _list_layouts(self, budget_bytes: int) -> list[StateLayout]:
        """List where the state may lie: as the problem has it, or with shares of the free bytes taken by what stays."""
        if not self._streams:
            return [self._placer.problem.state]
        spare = budget_bytes - find_first_address(self._smallest_state) - self._least_room
        if spare < 0:
            return [self._least_state]
        shares = (0.0, 0.5) if self._many else FRACTIONS[:-1]
        graph = self._placer.problem.graph
        found = {layout.nbytes: layout for layout in (keep_state(graph, int(spare * s)) for s in shares)}
        return list(found.values())

    def _recompute(self, count: int, recomputation: Recomputation, budget_bytes: int) -> list[int]:
        """Return the order in which the first `count` segments of cheap operations are dropped and computed again."""
        steps = take_first_segments(self._segments, count)
        at_once = [recomputation is not Recomputation.MEMORY_CENTRIC] * count
        order = write_recomputing_order(steps, at_once)
        if recomputation is Recomputation.COST_AWARE:
            state = self._smallest_state
            lifetimes = self._placer.find_lifetimes(order, state=state)
            staying = {t.id for t in self._placer.problem.graph.with_role(*STATE) if t.name in state.addresses}
            order = write_recomputing_order(
                steps, find_affordable(lifetimes, steps, budget_bytes - state.nbytes, staying)
            )
        return order

    def _make_candidate(self, name: str, order: Sequence[int], choose: KernelChoice, state: StateLayout) -> _Candidate:
        graph, costs = self._placer.problem.graph, self._placer.problem.costs
        lifetimes = self._placer.find_lifetimes(order, choose, state)
        seconds = [costs.kernels[step.op][step.kernel].seconds for step in lifetimes.steps if isinstance(step, Run)]
        heavy = [KINDS[graph.ops[graph.ops[number].forward_op].kind].heavy for number in order]
        uses = UseTable(graph, lifetimes, state.tensors_outside(graph))
        return _Candidate(name, order, choose, lifetimes, uses, Timing(seconds, heavy, self._link), state)
