"""What the strategies that move tensors try: orders of operations, kernels, and layouts of the state, for a budget.

An order runs every operation once, or computes outputs of cheap operations again, or follows a chain plan. With each of
them, different shares of the state may lie in the arena. Decides nothing: `offload` compares what is listed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...layers.graph import STATE
from ...layers.kinds import KINDS
from ...memory.sizes import format_size
from ..layout.kernels import KernelChoice, Kernels, choose_fastest_within
from ..layout.lifetimes import Lifetimes
from ..layout.placer import Placer
from ..offload.cache import Timing
from ..offload.recompute import Recomputation, Segmented, write_recomputing_order
from ..offload.segments import find_affordable, find_cheap_segments, take_first_segments
from ..offload.streamed_state import STREAMED_BYTES, find_first_address, keep_state
from ..offload.uses import UseTable
from ..plan.state_layout import StateLayout
from ..plan.steps import PAGE, Run
from .chain import ChainStrategy

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the segments that are tried to be dropped, and of the free bytes that the state is tried to take."""
ROOMS = (0.7, 1.0, 1.5, 2.5)
"""Chain plans are tried whose activations take so many times the bytes beside the state."""
MANY = 4000
"""Above so many operations scheduling takes seconds: only all segments or none are dropped, and few ways are tried."""
WORKSPACE_SHARE = 8
"""The workspace of a fast kernel takes at most this part of what is beside the state."""
SMALL_SHARE = 64
"""In a small arena tensors of the state may be streamed too that take this part of it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An order with kernels, before anything moves.

    Attributes:
        name: what the log calls it.
        order: operations.
        choose: the kernel of each operation.
        lifetimes: instances of the order.
        uses: when each instance is used.
        timing: seconds of the operations, and the link.
        state: where the state lies.
        seconds: the time of the operations if nothing is waited for.
    """

    name: str
    order: Sequence[int]
    choose: KernelChoice
    lifetimes: Lifetimes
    uses: UseTable
    timing: Timing
    state: StateLayout
    seconds: float


class Candidates:
    """Lists what may be tried for one graph.

    Args:
        placer: of the graph.
        recomputation: how outputs of cheap operations that are dropped come back; None drops none.
        streams: whether state may be left outside the arena.
        chain: gives the chain plans that are tried.
    """

    def __init__(
        self, placer: Placer, recomputation: Recomputation | None, streams: bool, chain: ChainStrategy | None
    ) -> None:
        self._placer, self._recomputation, self._streams, self._chain = placer, recomputation, streams, chain
        self._least_rooms: dict[int, int] = {}

    @cached_property
    def own_order(self) -> list[int]:
        """Every operation once, in the graph's order."""
        return [op.id for op in self._placer.problem.graph.ops]

    @property
    def are_slow(self) -> bool:
        """Whether the graph has so many operations that only few candidates are listed."""
        return len(self._placer.problem.graph.ops) > MANY

    @cached_property
    def _segments(self) -> Segmented[int]:
        return find_cheap_segments(self._placer.problem.graph)

    def lay_out(self, staying_bytes: int, large_bytes: int = PAGE) -> StateLayout:
        """Lay out the state, as the problem has it or with at most so many bytes of its large tensors in the arena."""
        problem = self._placer.problem
        return keep_state(problem.graph, staying_bytes, large_bytes) if self._streams else problem.state

    @cached_property
    def _smallest_state(self) -> StateLayout:
        """The layout with all large tensors outside that may be there."""
        return self.lay_out(0, STREAMED_BYTES)

    def _find_least_room(self, large_bytes: int) -> int:
        """Find the bytes that the graph's own order needs beside a state whose large tensors are outside."""
        if large_bytes not in self._least_rooms:
            state = self.lay_out(0, large_bytes)
            candidate = self.make("", self.own_order, self._placer.choose, state)
            self._least_rooms[large_bytes] = candidate.uses.least_bytes()
        return self._least_rooms[large_bytes]

    def list_layouts(self, budget_bytes: int) -> list[StateLayout]:
        """List where the state may lie: as the problem has it, or with shares of the free bytes taken by what stays."""
        if not self._streams:
            return [self._placer.problem.state]
        shares = (0.0, 0.5) if self.are_slow else FRACTIONS[:-1]
        found: dict[int, StateLayout] = {}
        for large in (STREAMED_BYTES, min(STREAMED_BYTES, max(PAGE, budget_bytes // SMALL_SHARE))):
            spare = budget_bytes - find_first_address(self.lay_out(0, large)) - self._find_least_room(large)
            if spare >= 0:
                layouts = (self.lay_out(int(spare * share), large) for share in shares)
                found.update((layout.nbytes, layout) for layout in layouts)
        return sorted(found.values(), key=lambda layout: layout.nbytes) or [self.lay_out(0)]

    def list_choices(self, budget_bytes: int) -> list[KernelChoice]:
        """List the choices of kernels: those that memory is planned with and, where kernels may vary, faster ones."""
        problem = self._placer.problem
        if problem.kernels is not Kernels.FIT:
            return [self._placer.choose]
        room = budget_bytes - self._smallest_state.nbytes
        return [self._placer.choose, choose_fastest_within(problem.costs, room // WORKSPACE_SHARE)]

    def list_orders(self, budget_bytes: int) -> Iterator[tuple[str, Sequence[int]]]:
        """List orders of operations, each with what the log calls it."""
        yield "nothing repeated", self.own_order
        state = self._smallest_state
        if self._recomputation is not None:
            count = len(self._segments.segments)
            shares = FRACTIONS[-1:] if self.are_slow else FRACTIONS[1:]
            for dropped in sorted({round(count * share) for share in shares} - {0}):
                order = self._recompute(dropped, self._recomputation, budget_bytes, state)
                yield f"{dropped} segments of cheap layers dropped", order
        if self._chain is not None:
            for times in (1.0,) if self.are_slow else ROOMS:
                room = int(times * (budget_bytes - state.nbytes))
                chain_order = self._chain.find_order_within(room)
                if chain_order is not None and len(chain_order) > len(self.own_order):
                    yield f"the chain plan for {format_size(room)}", chain_order

    def list_least_orders(self) -> list[Sequence[int]]:
        """List the orders that may need the least memory."""
        if self._recomputation is None:
            return [self.own_order]
        count = len(self._segments.segments)
        return [self.own_order, self._recompute(count, Recomputation.MEMORY_CENTRIC, 0, self.lay_out(0))]

    def _recompute(self, count: int, recomputation: Recomputation, budget_bytes: int, state: StateLayout) -> list[int]:
        """Return the order in which the first `count` segments of cheap operations are dropped and computed again."""
        steps = take_first_segments(self._segments, count)
        at_once = [recomputation is not Recomputation.MEMORY_CENTRIC] * count
        order = write_recomputing_order(steps, at_once)
        if recomputation is Recomputation.COST_AWARE:
            lifetimes = self._placer.find_lifetimes(order, state=state)
            staying = {t.id for t in self._placer.problem.graph.with_role(*STATE) if t.name in state.addresses}
            order = write_recomputing_order(
                steps, find_affordable(lifetimes, steps, budget_bytes - state.nbytes, staying)
            )
        return order

    def make(self, name: str, order: Sequence[int], choose: KernelChoice, state: StateLayout) -> Candidate:
        """Make a candidate of an order, a choice of kernels and a layout of the state."""
        graph, costs = self._placer.problem.graph, self._placer.problem.costs
        assert costs.link is not None, "the registry refuses strategies that move tensors where there is no link"
        lifetimes = self._placer.find_lifetimes(order, choose, state)
        seconds = [costs.kernels[step.op][step.kernel].seconds for step in lifetimes.steps if isinstance(step, Run)]
        heavy = [KINDS[graph.ops[graph.ops[number].forward_op].kind].heavy for number in order]
        uses = UseTable(graph, lifetimes, state.tensors_outside(graph))
        return Candidate(name, order, choose, lifetimes, uses, Timing(seconds, heavy, costs.link), state, sum(seconds))
