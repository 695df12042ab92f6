"""The three ways of the SuperNeurons paper to compute cheap layers again, as orders of steps.

Outputs of cheap layers (pooling, activation, batch norm, response norm, dropout) are dropped in the forward pass. A
segment is a run of such layers between two checkpoints. What a backward step reads is computed again from the nearest
tensor of its segment that is there; what no backward step reads, such as the output of a batch norm before a join,
never is. As for our own plans, the order alone says what is kept: a read takes the latest value, which dies with its
last read, so what is computed on the way only is gone at once.

- speed-centric: the first backward step that reads from a segment computes all of it, once, for all others: n runs
  for a segment of n.
- memory-centric: each backward step computes just what it reads and is not there: n (n + 1) / 2 runs where each layer
  reads its input and output, and the least memory.
- cost-aware: speed-centric for the segments that stay within max lᵢ, the largest layer's own memory, on the way;
  memory-centric for the others.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: cost-aware recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from .accounting import layer_order, live_bytes
from .paper_layers import CHEAP, PaperNetwork, Step


class Recomputation(str, Enum):
    """How dropped tensors come back."""

    SPEED_CENTRIC = "speed-centric"
    MEMORY_CENTRIC = "memory-centric"
    COST_AWARE = "cost-aware"


Segment = tuple[int, ...]
"""Ids of consecutive cheap layers, each of which reads the output of the one before."""


def segments(network: PaperNetwork) -> tuple[Segment, ...]:
    """All segments, in the order of their first layers."""
    cheap = [layer for layer in network.layers if layer.kind in CHEAP]
    runs: list[list[int]] = []
    ending_in: dict[int, list[int]] = {}
    for layer in cheap:
        run = ending_in.pop(layer.inputs[0], None)
        if run is None:
            run = []
            runs.append(run)
        run.append(layer.id)
        ending_in[layer.outputs[0]] = run
    return tuple(map(tuple, runs))


def largest_layer_bytes(network: PaperNetwork) -> int:
    """Bytes of the layer with the most memory of its own, max lᵢ: the paper's bound of what recomputation reaches."""
    return max(map(network.layer_bytes, network.layers))


def recomputing_order(network: PaperNetwork, mode: Recomputation) -> list[Step]:
    """The order of all steps with every recomputation of a mode."""
    runs = segments(network)
    if mode is not Recomputation.COST_AWARE:
        return _order(network, runs, [mode is Recomputation.SPEED_CENTRIC] * len(runs))
    return _order(network, runs, _affordable(network, runs, largest_layer_bytes(network)))


def recomputations(network: PaperNetwork, order: Sequence[Step]) -> int:
    """Number of forward runs beyond the first of each layer."""
    return len(order) - 2 * len(network.layers)


def _order(network: PaperNetwork, runs: Sequence[Segment], at_once: Sequence[bool]) -> list[Step]:
    """The order in which the segments of `at_once` are recomputed as a whole, the others step by step."""
    order = layer_order(network)
    forward, backward = order[: len(network.layers)], order[len(network.layers) :]
    home = {
        network.layers[layer].outputs[0]: (number, place)
        for number, run in enumerate(runs)
        for place, layer in enumerate(run)
    }
    wanted = [[t for t in network.operands(step).reads if t in home] for step in backward]
    last = dict.fromkeys(range(len(runs)), 0)
    for number, place in (home[t] for tensors in wanted for t in tensors):
        last[number] = max(last[number], place)
    there: set[int] = set()
    steps = list(forward)
    for step, tensors in zip(backward, wanted, strict=True):
        for tensor in sorted(tensors, key=home.__getitem__):
            if tensor in there:
                continue
            number, place = home[tensor]
            end = last[number] if at_once[number] else place
            outputs = [network.layers[layer].outputs[0] for layer in runs[number]]
            begin = end
            while begin and outputs[begin - 1] not in there:
                begin -= 1
            steps += [Step(layer, backward=False) for layer in runs[number][begin : end + 1]]
            there.update(outputs[begin : end + 1] if at_once[number] else (tensor,))
        steps.append(step)
    return steps


def _affordable(network: PaperNetwork, runs: Sequence[Segment], limit_bytes: int) -> list[bool]:
    """For each segment, whether all that lives while it is recomputed at once and used stays within the limit."""
    order = _order(network, runs, [True] * len(runs))
    live = live_bytes(network, order, offload=True)
    home = {layer: number for number, run in enumerate(runs) for layer in run}
    most = [0] * len(runs)
    begin: dict[int, int] = {}
    for position, step in enumerate(order):
        if position < len(network.layers) or step.layer not in home:
            continue
        number = home[step.layer]
        begin.setdefault(number, position)
        if step.backward and step.layer == runs[number][0]:
            most[number] = max(live[begin[number] : position + 1])
    return [nbytes <= limit_bytes for nbytes in most]
