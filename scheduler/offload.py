"""The strategies that move tensors out: which order of operations, which cache, which kernels, and what is fastest.

`offload` runs every operation once, in the graph's order. `superneurons` drops outputs of cheap operations too and computes
them again: cost-aware, or always speed- or memory-centric. Whatever still does not fit is moved out. In the cost-aware
mode a segment is recomputed at once where what lives meanwhile stays within the budget; at the smallest budget that is
the paper's max lᵢ. `stream` does all that too, and leaves part of the state outside the arena: what stays is the state of
the first blocks, parameters before momentum, which would move most.

Segments are dropped from the first on: all of them, or as many as a few fractions try; of the state a few fractions stay.
Each candidate is played on the link, with the kernels of least workspace and, where kernels follow the free bytes, with fast ones; taken is the fastest.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..layers.graph import STATE, Phase, Role
from ..layers.kinds import KINDS
from ..memory.errors import ConfigError
from .draft import Draft
from .kernels import Choice, Kernels, fastest_within
from .orders import Placed, Placer
from .plan import NO_TENSOR, PAGE, Run, aligned
from .recompute import Recomputation, Segmented, recomputing_order
from .residents import Residents
from .segments import affordable, cheap_segments, first_segments
from .state_layout import StateLayout, in_order_of_blocks, lay_out_state
from .strategies import Strategy
from .tensor_cache import Eviction, Timing, play
from .transfers import with_moves

logger = logging.getLogger(__name__)

MODES = {
    "superneurons": Recomputation.COST_AWARE,
    "superneurons-speed": Recomputation.SPEED_CENTRIC,
    "superneurons-memory": Recomputation.MEMORY_CENTRIC,
    "stream": Recomputation.COST_AWARE,
}
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the segments that are tried to be dropped."""
MANY = 4000
"""Operations above which only all or none are tried: seconds a candidate."""
WORKSPACE_SHARE = 8
"""The workspace of a fast kernel takes at most this part of what is beside the state."""
STREAMED_BYTES = 64 * 2**10
"""Smaller tensors of the state stay in the arena: together they are small, and each would be a transfer of its own."""


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
    draft: Draft
    residents: Residents
    timed: Timing
    state: StateLayout


class OffloadOrders:
    """Proposes the orders of one of the strategies with moves.

    Args:
        placer: of the graph.
        strategy: `offload` or one of `MODES`.

    Raises:
        ConfigError: the cost table has no link.
    """

    def __init__(self, placer: Placer, strategy: Strategy) -> None:
        problem = placer.problem
        link = problem.costs.link
        if link is None:
            raise ConfigError(
                "link",
                f"the speed at which strategy {str(strategy)!r} can move tensors out of the arena and back",
                "none",
                "Give --link OUT,IN in bytes per second, such as '1 GB,1.5 GB'.",
            )
        self._placer, self._strategy, self._link = placer, strategy, link
        self._streams = strategy.name == "stream" and not problem.fixed_state
        training = any(op.phase is Phase.LOSS for op in problem.graph.ops)
        self._mode = MODES.get(strategy.name) if training else None
        self._evictions = list(Eviction) if strategy.eviction is None else [Eviction(strategy.eviction)]
        self._own_order = [op.id for op in problem.graph.ops]

    @cached_property
    def _segments(self) -> Segmented[int]:
        return cheap_segments(self._placer.problem.graph)

    @cached_property
    def _smallest_state(self) -> StateLayout:
        return self._with_resident(0) if self._streams else self._placer.problem.state

    def smallest(self) -> Placed:
        """The plan of least memory."""
        orders = [self._own_order]
        if self._mode is not None:
            orders.append(self._recomputing(len(self._segments.segments), Recomputation.MEMORY_CENTRIC, 0))
        candidates = [self._candidate("smallest", o, self._placer.choose, self._smallest_state) for o in orders]
        least = min(candidates, key=lambda candidate: candidate.residents.least_bytes())
        del candidates, orders  # a deep network's take tens of MiB
        end = self._first(least.state) + least.residents.least_bytes()
        found = [placed for e in self._evictions if (placed := self._placed(least, e, end)) is not None]
        return min(found, key=lambda placed: (placed.end, self._placer.seconds(placed.draft)))

    def fastest(self, budget_bytes: int) -> Placed | None:
        """The fastest for the budget that is found; None where none fits."""
        best, least = None, float("inf")
        for candidate in self._candidates(budget_bytes):
            for eviction in self._evictions:
                placed = self._placed(candidate, eviction, budget_bytes)
                if placed is None:
                    logger.info("%s: %s does not fit", self._strategy, candidate.name)
                    continue
                most = self._placer.problem.most_outside_bytes
                if most is not None and placed.outside_end > most:
                    logger.info("%s: %s puts %d bytes outside", self._strategy, candidate.name, placed.outside_end)
                    continue
                seconds = self._placer.seconds(placed.draft)
                logger.info("%s: %s, %s takes %.4g s", self._strategy, candidate.name, eviction.value, seconds)
                if seconds < least:
                    best, least = placed, seconds
                del placed
            del candidate  # a deep network's takes tens of MiB: it goes before the next one is made
        return best

    def _first(self, state: StateLayout) -> int:
        """The first address above the state that may move."""
        return aligned(state.nbytes, PAGE)

    def _placed(self, candidate: _Candidate, eviction: Eviction, budget_bytes: int) -> Placed | None:
        """Play a candidate; None where it does not fit."""
        first, state = self._first(candidate.state), candidate.state
        played = play(candidate.residents, first, budget_bytes // PAGE * PAGE, eviction, candidate.timed)
        if played is None:
            return None
        order = with_moves(candidate.order, candidate.draft, played, candidate.timed)
        drafted = self._placer.drafted(order, candidate.choose, state)
        stays: dict[int, list[int]] = {}
        for instance, tensor in enumerate(candidate.draft.tensor):
            if instance in candidate.residents.fixed:
                stays.setdefault(tensor, []).append(first + candidate.residents.fixed[instance])
            else:
                stays.setdefault(tensor, []).extend(played.addresses.get(instance, ()))
        names = [t.name for t in self._placer.problem.graph.tensors]
        following = {tensor: iter(addresses) for tensor, addresses in stays.items()}
        addresses = [
            state.addresses[names[t]] if t != NO_TENSOR and names[t] in state.addresses else next(following[t])
            for t in drafted.tensor
        ]
        return self._placer.at(order, drafted, addresses, state, settled=True)

    def _candidates(self, budget_bytes: int) -> Iterator[_Candidate]:
        problem = self._placer.problem
        choices = {"least workspace": self._placer.choose}
        if problem.kernels is Kernels.FIT:
            room = budget_bytes - self._smallest_state.nbytes
            choices["fast kernels"] = fastest_within(problem.costs, room // WORKSPACE_SHARE)
        counts = [0]
        if self._mode is not None:
            count = len(self._segments.segments)
            counts = sorted({round(count * share) for share in self._shares})
        for count in counts:
            order = self._own_order
            if count and self._mode is not None:
                order = self._recomputing(count, self._mode, budget_bytes)
            for state in self._layouts(budget_bytes):
                for words, choose in choices.items():
                    name = f"{count} segments dropped, {state.nbytes} bytes of state in the arena, {words}"
                    yield self._candidate(name, order, choose, state)

    @property
    def _shares(self) -> Sequence[float]:
        return (0.0, 1.0) if len(self._placer.problem.graph.ops) > MANY else FRACTIONS

    def _layouts(self, budget_bytes: int) -> list[StateLayout]:
        """Where the state may lie: as it must, or with several shares of what else is free taken by what stays."""
        if not self._streams:
            return [self._placer.problem.state]
        smallest = self._smallest_state
        spare = (
            budget_bytes - self._candidate("", self._own_order, self._placer.choose, smallest).residents.least_bytes()
        )
        shares = (0.0, 0.5) if len(self._placer.problem.graph.ops) > MANY else FRACTIONS[:-1]
        found = {layout.nbytes: layout for layout in (self._with_resident(int(spare * s)) for s in shares)}
        return list(found.values())

    def _with_resident(self, nbytes: int) -> StateLayout:
        """The layout in which at most so many bytes of large tensors of the state stay in the arena."""
        graph = self._placer.problem.graph
        large = [t for t in in_order_of_blocks(graph) if t.nbytes >= STREAMED_BYTES]
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
            drafted = self._placer.drafted(order, state=self._smallest_state)
            order = recomputing_order(steps, affordable(drafted, steps, budget_bytes - self._smallest_state.nbytes))
        return order

    def _candidate(self, name: str, order: Sequence[int], choose: Choice, state: StateLayout) -> _Candidate:
        graph, costs = self._placer.problem.graph, self._placer.problem.costs
        drafted = self._placer.drafted(order, choose, state)
        seconds = [costs.kernels[step.op][step.kernel].seconds for step in drafted.steps if isinstance(step, Run)]
        heavy = [KINDS[graph.ops[graph.ops[number].forward_op].kind].heavy for number in order]
        outside = {t.id for t in graph.with_role(*STATE) if t.name in state.outside}
        timed = Timing(seconds, heavy, self._link)
        return _Candidate(name, order, choose, drafted, Residents(graph, drafted, outside), timed, state)
