"""The strategies that move tensors out: which order of operations, which cache, which kernels, and what is fastest.

`offload` runs every operation once, in the graph's order. `superneurons` drops outputs of cheap operations too and computes
them again: cost-aware, or always speed- or memory-centric. Whatever still does not fit is moved out. In the cost-aware
mode a segment is recomputed at once where what lives meanwhile stays within the budget; at the smallest budget that is
the paper's max lᵢ. `stream` does all that too, follows the optimal chain plans of budgets around its own, and leaves part
of the state outside the arena: what stays is the state of the first blocks, parameters before momentum, which would move
most.

Segments are dropped from the first on: all of them, or as many as a few fractions try; of the state a few fractions stay.
Each order is played on the link; the best few are played with every layout of the state, cache and choice of kernels,
those of least workspace and, where kernels follow the free bytes, fast ones. Taken is the fastest.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...layers.graph import STATE, Phase, Role
from ...layers.kinds import KINDS
from ...memory.errors import ConfigError
from ...memory.sizes import format_size
from ..layout.kernels import Choice, Kernels, fastest_within
from ..layout.lifetimes import Lifetimes
from ..layout.placer import PlacedOrder, Placer
from ..layout.problem import Problem
from ..offload.cache import EvictionRule, Timing, schedule_cache
from ..offload.recompute import Recomputation, Segmented, recomputing_order
from ..offload.segments import affordable, cheap_segments, first_segments
from ..offload.transfers import with_moves
from ..offload.uses import UseTable
from ..plan.link import Link
from ..plan.state_layout import StateLayout, lay_out_state, sort_by_block
from ..plan.steps import NO_TENSOR, PAGE, Run, align_up
from .chain import ChainStrategy
from .names import MOVING, StrategyName

logger = logging.getLogger(__name__)

MODES = {
    "superneurons": Recomputation.COST_AWARE,
    "superneurons-speed": Recomputation.SPEED_CENTRIC,
    "superneurons-memory": Recomputation.MEMORY_CENTRIC,
    "stream": Recomputation.COST_AWARE,
}
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the segments that are tried to be dropped."""
ROOMS = (0.7, 1.0, 1.5, 2.5)
"""Chain plans that are tried: for so many times what is beside the state."""
KEPT = 2
"""Orders that are played in all ways, the fastest when played in one."""
MANY = 4000
"""Operations above which only all or none are tried, and one order is kept: seconds a play."""
WORKSPACE_SHARE = 8
"""The workspace of a fast kernel takes at most this part of what is beside the state."""
STREAMED_BYTES = 64 * 2**10
"""Smaller tensors of the state stay in the arena: together they are small, and each would be a transfer of its own. Only
the plan of least memory lets those leave that fill a page."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An order with kernels, before anything moves.

    Attributes:
        name: for the log.
        order: operations.
        choose: their kernels.
        draft: its instances.
        residents: its uses.
        timed: its seconds.
        state: where the state lies.
    """

    name: str
    order: Sequence[int]
    choose: Choice
    lifetimes: Lifetimes
    residents: UseTable
    timed: Timing
    state: StateLayout


def require_link(problem: Problem, strategy: StrategyName) -> Link | None:
    """The link of a problem; None only where the strategy needs none.

    Raises:
        ConfigError: the cost table has none, and the strategy moves tensors.
    """
    link = problem.costs.link
    if link is None and strategy.name in MOVING:
        raise ConfigError(
            "link",
            f"the speed at which strategy {str(strategy)!r} can move tensors out of the arena and back",
            "none",
            "Give --link OUT,IN in bytes per second, such as '1 GB,1.5 GB'.",
        )
    return link


class OffloadStrategy:
    """Proposes the orders of one of the strategies with moves.

    Args:
        placer: of the graph.
        strategy: `offload` or one of `MODES`.
        chain: gives the chain plans that are tried.
        link: by default the cost table's.

    Raises:
        ConfigError: the cost table has no link.
    """

    def __init__(
        self, placer: Placer, strategy: StrategyName, chain: ChainStrategy | None = None, link: Link | None = None
    ) -> None:
        problem = placer.problem
        link = link or require_link(problem, strategy)
        assert link is not None
        self._placer, self._strategy, self._link = placer, strategy, link
        self._streams = strategy.name == "stream" and not problem.fixed_state
        training = any(op.phase is Phase.LOSS for op in problem.graph.ops)
        self._mode = MODES.get(strategy.name) if training else None
        self._evictions = list(EvictionRule) if strategy.eviction is None else [EvictionRule(strategy.eviction)]
        self._own_order = [op.id for op in problem.graph.ops]
        self._chain = chain
        self._many = len(problem.graph.ops) > MANY

    @cached_property
    def _segments(self) -> Segmented[int]:
        return cheap_segments(self._placer.problem.graph)

    @cached_property
    def _smallest_state(self) -> StateLayout:
        """With all large tensors outside that may be there."""
        return self._with_resident(0) if self._streams else self._placer.problem.state

    @cached_property
    def _least_room(self) -> int:
        """What the own order needs beside that, whatever the budget."""
        candidate = self._candidate("", self._own_order, self._placer.choose, self._smallest_state)
        return candidate.residents.least_bytes()

    @cached_property
    def _least_state(self) -> StateLayout:
        """With all tensors outside that may be there at all."""
        return self._with_resident(0, PAGE) if self._streams else self._placer.problem.state

    def smallest(self) -> PlacedOrder:
        """The plan of least memory."""
        orders = [self._own_order]
        if self._mode is not None:
            orders.append(self._recomputing(len(self._segments.segments), Recomputation.MEMORY_CENTRIC, 0))
        candidates = [self._candidate("least memory", o, self._placer.choose, self._least_state) for o in orders]
        least = min(candidates, key=lambda candidate: candidate.residents.least_bytes())
        del candidates, orders  # a deep network's take tens of MiB
        end = self._first(least.state) + least.residents.least_bytes()
        found = [placed for e in self._evictions if (placed := self._place(least, e, end)) is not None]
        return min(found, key=lambda placed: (placed.end, sum(placed.lifetimes.copies.nbytes)))

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """The fastest for the budget that is found; None where none fits."""
        layouts = self._layouts(budget_bytes)
        first = layouts[len(layouts) // 3]
        best, least = None, math.inf
        played: list[tuple[float, int, str, Sequence[int]]] = []
        for number, (name, order) in enumerate(self._orders(budget_bytes)):
            candidate = self._candidate(name, order, self._placer.choose, first)
            seconds, placed = self._try(candidate, self._evictions[0], budget_bytes)
            if placed is not None:
                played.append((seconds, number, name, order))
            if seconds < least:
                best, least = placed, seconds
            del candidate, placed  # a deep network's take tens of MiB: they go before the next ones are made
        for _, _, name, order in sorted(played)[: 1 if self._many else KEPT]:
            for choose in self._choices(budget_bytes):
                for state in layouts:
                    candidate = self._candidate(name, order, choose, state)
                    for eviction in self._evictions:
                        if (choose, state, eviction) == (self._placer.choose, first, self._evictions[0]):
                            continue
                        seconds, placed = self._try(candidate, eviction, budget_bytes)
                        if seconds < least:
                            best, least = placed, seconds
                        del placed
                    del candidate
        return best

    def _try(
        self, candidate: _Candidate, eviction: EvictionRule, budget_bytes: int
    ) -> tuple[float, PlacedOrder | None]:
        """Its seconds, and where it lies; infinity and None where it does not fit."""
        placed, most = self._place(candidate, eviction, budget_bytes), self._placer.problem.most_outside_bytes
        seconds = math.inf
        if placed is None:
            words = "does not fit"
        elif most is not None and placed.outside_end > most:
            words, placed = f"puts {placed.outside_end} bytes outside", None
        else:
            seconds = self._placer.seconds(placed.lifetimes)
            words = f"takes {seconds:.4g} s"
        state = candidate.state.nbytes
        logger.info("%s: %s, %d bytes of state, %s %s", self._strategy, candidate.name, state, eviction.value, words)
        return seconds, placed

    def _choices(self, budget_bytes: int) -> list[Choice]:
        problem = self._placer.problem
        if problem.kernels is not Kernels.FIT:
            return [self._placer.choose]
        room = budget_bytes - self._smallest_state.nbytes
        return [self._placer.choose, fastest_within(problem.costs, room // WORKSPACE_SHARE)]

    def _orders(self, budget_bytes: int) -> Iterator[tuple[str, Sequence[int]]]:
        yield "nothing repeated", self._own_order
        if self._mode is not None:
            count = len(self._segments.segments)
            shares = FRACTIONS[-1:] if self._many else FRACTIONS[1:]
            for dropped in sorted({round(count * share) for share in shares} - {0}):
                yield (
                    f"{dropped} segments of cheap layers dropped",
                    self._recomputing(dropped, self._mode, budget_bytes),
                )
        if self._chain is not None:
            for times in (1.0,) if self._many else ROOMS:
                room = int(times * (budget_bytes - self._smallest_state.nbytes))
                order = self._chain.order_within(room)
                if order is not None and len(order) > len(self._own_order):
                    yield f"the chain plan for {format_size(room)}", order

    def _first(self, state: StateLayout) -> int:
        """The first address above the state that may move."""
        return align_up(state.nbytes, PAGE)

    def _place(self, candidate: _Candidate, eviction: EvictionRule, budget_bytes: int) -> PlacedOrder | None:
        """Play a candidate; None where it does not fit."""
        first, state = self._first(candidate.state), candidate.state
        played = schedule_cache(candidate.residents, first, budget_bytes // PAGE * PAGE, eviction, candidate.timed)
        if played is None:
            return None
        order = with_moves(candidate.order, candidate.lifetimes, played, candidate.timed)
        lifetimes = self._placer.find_lifetimes(order, candidate.choose, state)
        stays: dict[int, list[int]] = {}
        for instance, tensor in enumerate(candidate.lifetimes.tensor):
            if instance in candidate.residents.fixed:
                stays.setdefault(tensor, []).append(first + candidate.residents.fixed[instance])
            else:
                stays.setdefault(tensor, []).extend(played.addresses.get(instance, ()))
        names = [t.name for t in self._placer.problem.graph.tensors]
        following = {tensor: iter(addresses) for tensor, addresses in stays.items()}
        addresses = [
            state.addresses[names[t]] if t != NO_TENSOR and names[t] in state.addresses else next(following[t])
            for t in lifetimes.tensor
        ]
        cached = (
            "the least recently used leave first"
            if eviction is EvictionRule.LRU
            else "the farthest next use leaves first"
        )
        note = f"{candidate.name}, {cached}"
        if state.outside:
            note += f", {format_size(state.outside_nbytes)} of the state outside"
        return replace(self._placer.place_at(order, lifetimes, addresses, state, settled=True), note=note)

    def _layouts(self, budget_bytes: int) -> list[StateLayout]:
        """Where the state may lie: as it must, or with several shares of what else is free taken by what stays."""
        if not self._streams:
            return [self._placer.problem.state]
        spare = budget_bytes - self._first(self._smallest_state) - self._least_room
        if spare < 0:
            return [self._least_state]
        shares = (0.0, 0.5) if self._many else FRACTIONS[:-1]
        found = {layout.nbytes: layout for layout in (self._with_resident(int(spare * s)) for s in shares)}
        return list(found.values())

    def _with_resident(self, nbytes: int, large_bytes: int = STREAMED_BYTES) -> StateLayout:
        """The layout in which at most so many bytes of large tensors of the state stay in the arena."""
        graph = self._placer.problem.graph
        large = [t for t in sort_by_block(graph) if t.nbytes >= large_bytes]
        outside: set[int] = set()
        for tensor in sorted(large, key=lambda t: t.role is not Role.PARAMETER):
            nbytes -= tensor.nbytes
            if nbytes < 0:
                outside.add(tensor.id)
        return lay_out_state(graph, outside)

    def _recomputing(self, count: int, mode: Recomputation, budget_bytes: int) -> list[int]:
        steps = first_segments(self._segments, count)
        at_once = [mode is not Recomputation.MEMORY_CENTRIC] * count
        order = recomputing_order(steps, at_once)
        if mode is Recomputation.COST_AWARE:
            lifetimes = self._placer.find_lifetimes(order, state=self._smallest_state)
            state = self._smallest_state
            resident = {t.id for t in self._placer.problem.graph.with_role(*STATE) if t.name in state.addresses}
            order = recomputing_order(steps, affordable(lifetimes, steps, budget_bytes - state.nbytes, resident))
        return order

    def _candidate(self, name: str, order: Sequence[int], choose: Choice, state: StateLayout) -> _Candidate:
        graph, costs = self._placer.problem.graph, self._placer.problem.costs
        lifetimes = self._placer.find_lifetimes(order, choose, state)
        seconds = [costs.kernels[step.op][step.kernel].seconds for step in lifetimes.steps if isinstance(step, Run)]
        heavy = [KINDS[graph.ops[graph.ops[number].forward_op].kind].heavy for number in order]
        residents = UseTable(graph, lifetimes, state.tensors_outside(graph))
        return _Candidate(name, order, choose, lifetimes, residents, Timing(seconds, heavy, self._link), state)
