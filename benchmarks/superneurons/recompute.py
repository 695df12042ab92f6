"""Recomputation by the accounting of the SuperNeurons paper: its segments, its limit, its counts.

Outputs of cheap layers (pooling, activation, batch norm, response norm, dropout) are dropped in the forward pass; a
segment is a run of such layers between two checkpoints. Cost-aware means speed-centric for the segments that stay
within max lᵢ, the largest layer's own memory, on the way; memory-centric for the others.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: cost-aware recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence

from bathyal.scheduler.offload.recompute import Recomputation, Segmented, find_runs, write_recomputing_order

from .accounting import layer_order, live_bytes
from .layers import CHEAP, PaperNetwork, Step


def segments(network: PaperNetwork) -> tuple[tuple[Step, ...], ...]:
    """All segments, in the order of their first layers."""
    cheap = (layer for layer in network.layers if layer.kind in CHEAP)
    return find_runs((Step(layer.id, backward=False), layer.inputs[0], layer.outputs[0]) for layer in cheap)


def largest_layer_bytes(network: PaperNetwork) -> int:
    """Bytes of the layer with the most memory of its own, max lᵢ: the paper's bound of what recomputation reaches."""
    return max(map(network.layer_bytes, network.layers))


def paper_order(network: PaperNetwork, mode: Recomputation) -> list[Step]:
    """The order of all steps with every recomputation of a mode."""
    order = layer_order(network)
    forward, backward = order[: len(network.layers)], order[len(network.layers) :]
    runs = segments(network)
    makes = {step: network.layers[step.layer].outputs for run in runs for step in run}
    steps = Segmented(forward, backward, runs, makes, {step: network.operands(step).reads for step in backward})
    at_once = [mode is not Recomputation.MEMORY_CENTRIC] * len(runs)
    if mode is Recomputation.COST_AWARE:
        whole = write_recomputing_order(steps, at_once)
        at_once = _affordable(network, runs, whole, largest_layer_bytes(network))
    return write_recomputing_order(steps, at_once)


def recomputations(network: PaperNetwork, order: Sequence[Step]) -> int:
    """Number of forward runs beyond the first of each layer."""
    return len(order) - 2 * len(network.layers)


def _affordable(
    network: PaperNetwork, runs: Sequence[tuple[Step, ...]], order: Sequence[Step], limit_bytes: int
) -> list[bool]:
    """For each segment, whether all that lives while it is recomputed at once and used stays within the limit."""
    live = live_bytes(network, order, offload=True)
    home = {step.layer: number for number, run in enumerate(runs) for step in run}
    most = [0] * len(runs)
    begin: dict[int, int] = {}
    for position, step in enumerate(order):
        if position < len(network.layers) or step.layer not in home:
            continue
        number = home[step.layer]
        begin.setdefault(number, position)
        if step.backward and step.layer == runs[number][0].layer:
            most[number] = max(live[begin[number] : position + 1])
    return [nbytes <= limit_bytes for nbytes in most]
