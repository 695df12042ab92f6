"""Which kernel each operation uses: the first, or the fastest whose workspace fits the bytes free while it runs.

Source of the rule: SuperNeurons, section 3.5 (dynamic convolution workspace allocation). All runs of an operation in
a step use one kernel, so that a recomputed value is the value that the loss was computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from ...layers.graph import Graph, Phase
from ..plan.costs import CostTable
from ..plan.steps import NO_INSTANCE, Run, align_address
from .lifetimes import Lifetimes


class Kernels(str, Enum):
    """How kernels are chosen: the library's first, whatever the budget, or by time and free bytes."""

    FIXED = "fixed"
    FIT = "fit"


KernelChoice = Callable[[int], tuple[int, int]]
"""Returns for an operation's id the index and the workspace bytes of its kernel."""


def choose_least_workspace(costs: CostTable, kernels: Kernels) -> KernelChoice:
    """Return the choice that memory is planned with: the first kernel where they are fixed, else least workspace."""

    def choose(op: int) -> tuple[int, int]:
        index = 0 if kernels is Kernels.FIXED else costs.find_smallest(op)
        return index, costs.kernels[op][index].workspace_bytes

    return choose


def _choose_among(costs: CostTable, op: int, among: Iterable[int]) -> tuple[int, int]:
    options = costs.kernels[op]
    index = min(among, key=lambda i: (options[i].seconds, options[i].workspace_bytes, i))
    return index, options[index].workspace_bytes


def choose_fastest(costs: CostTable) -> KernelChoice:
    """Return the choice of the fastest kernel of each operation, whatever its workspace."""
    return lambda op: _choose_among(costs, op, range(len(costs.kernels[op])))


def choose_fastest_within(costs: CostTable, workspace_bytes: int) -> KernelChoice:
    """Return the choice of the fastest kernel with at most so much workspace, else of the one with the least."""

    def choose(op: int) -> tuple[int, int]:
        options, smallest = costs.kernels[op], costs.find_smallest(op)
        fits = [i for i, k in enumerate(options) if k.workspace_bytes <= workspace_bytes or i == smallest]
        return _choose_among(costs, op, fits)

    return choose


def choose_fast_gradients(graph: Graph, costs: CostTable, otherwise: KernelChoice) -> KernelChoice:
    """Return the choice of the fastest kernels for the backward pass, and of `otherwise` for what may run again."""
    fast = choose_fastest(costs)
    return lambda op: otherwise(op) if graph.ops[op].phase is Phase.FORWARD else fast(op)


def choose_fastest_that_fits(costs: CostTable, planned: Lifetimes, room_bytes: int) -> KernelChoice:
    """Return the choice of the fastest kernels that fit `room_bytes` beside what lives in `planned` when they run."""
    live = planned.live_bytes()
    free: dict[int, int] = {}
    for position, step in enumerate(planned.steps):
        if not isinstance(step, Run):
            continue
        own = 0 if step.workspace == NO_INSTANCE else planned.nbytes[step.workspace]
        spare = room_bytes - int(live[position]) + own
        free[step.op] = min(spare, free.get(step.op, spare))

    def choose(op: int) -> tuple[int, int]:
        options = costs.kernels[op]
        smallest = costs.find_smallest(op)
        fits = [i for i, k in enumerate(options) if align_address(k.workspace_bytes) <= free[op] or i == smallest]
        return _choose_among(costs, op, fits)

    return choose
