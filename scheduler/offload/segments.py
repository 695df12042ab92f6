"""The runs of cheap operations in a training graph, and which of them can be recomputed as a whole within a budget.

An operation is cheap if it reads one activation, is neither a convolution nor a matrix product, and may be repeated:
activation, batch norm, response norm, pooling, dropout. Sums and concatenations are kept as convolutions are, as in the
paper.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: cost-aware recomputation.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from ...layers.graph import FED, STATE, Graph, Op, Phase
from ...layers.kinds import KINDS
from ..layout.lifetimes import Lifetimes
from ..plan.steps import Run
from .recompute import Segmented, find_runs


def find_cheap_segments(graph: Graph) -> Segmented[int]:
    """Find the runs of cheap operations in a training graph: its step with all of them as segments, first to last."""
    forward_count = 1 + max(op.id for op in graph.ops if op.phase is Phase.LOSS)  # the loss is the last of them
    forward = graph.ops[:forward_count]
    sources = {op.id: source for op in forward if (source := _find_only_activation(graph, op)) is not None}
    cheap = [graph.ops[number] for number in sources]
    runs = find_runs((op.id, sources[op.id], op.outputs[0]) for op in cheap)
    makes = {op.id: tuple(t for i, t in enumerate(op.outputs) if i not in KINDS[op.kind].kept) for op in cheap}
    backward = [op.id for op in graph.ops[forward_count:]]
    reads = {number: graph.ops[number].inputs for number in backward}
    return Segmented([op.id for op in forward], backward, runs, makes, reads)


def take_first_segments(steps: Segmented[int], count: int) -> Segmented[int]:
    """Return the same step with its first `count` segments alone, whose values live longest."""
    return replace(steps, segments=steps.segments[:count])


def _find_only_activation(graph: Graph, op: Op) -> int | None:
    """Return the tensor that a cheap operation reads beside state; None for all other operations."""
    if op.phase is not Phase.FORWARD or op.updates or KINDS[op.kind].heavy:
        return None
    read = [t for t in dict.fromkeys(op.inputs) if graph.tensors[t].role not in STATE | FED]
    return read[0] if len(read) == 1 else None


def find_affordable(
    lifetimes: Lifetimes, steps: Segmented[int], limit_bytes: int, beside: Container[int]
) -> list[bool]:
    """Find for each segment whether it can be recomputed as a whole, and its values be used, within a limit.

    Args:
        lifetimes: those of the order in which all segments are recomputed as a whole.
        steps: the segments.
        limit_bytes: the limit for the operands of the running step with the values of cheap operations; all else is
            taken to be outside between its uses.
        beside: tensors that do not count: the state that stays in the arena.
    """
    home = {t: number for number, run in enumerate(steps.segments) for op in run for t in steps.makes[op]}
    live = _count_least_live_bytes(lifetimes, home.keys(), beside)
    most = [0] * len(steps.segments)
    seen: dict[int, int] = {}
    for position, step in enumerate(lifetimes.steps):
        assert isinstance(step, Run)
        if step.op not in steps.reads and not step.recompute:
            continue
        for number in {home[t] for i in (*step.inputs, *step.outputs) if (t := lifetimes.tensor[i]) in home}:
            most[number] = max(most[number], *live[seen.get(number, position) : position + 1])
            seen[number] = position
    return [nbytes <= limit_bytes for nbytes in most]


def _count_least_live_bytes(lifetimes: Lifetimes, cheap: Container[int], beside: Container[int]) -> list[int]:
    """Count for each plan step the bytes that must be in the arena if every tensor that is not cheap leaves it.

    These are the operands of the step, and the values of cheap operations that are alive: they are made again rather
    than moved, so they stay in the arena from their first use to their last.

    Args:
        lifetimes: those of the whole order.
        cheap: tensors that cheap operations make.
        beside: tensors that do not count.
    """
    change = [0] * (len(lifetimes.steps) + 1)
    for tensor, birth, death, nbytes in zip(
        lifetimes.tensor, lifetimes.birth, lifetimes.death, lifetimes.nbytes, strict=True
    ):
        if tensor in cheap:
            change[birth] += nbytes
            change[death + 1] -= nbytes
    live, total = [], 0
    for step, delta in zip(lifetimes.steps, change, strict=False):
        assert isinstance(step, Run)
        total += delta
        operands = {i for i in (*step.inputs, *step.outputs) if lifetimes.tensor[i] not in cheap}
        others = [i for i in operands if lifetimes.tensor[i] not in beside]
        live.append(total + sum(lifetimes.nbytes[i] for i in others))
    return live
