"""Peaks of memory by the rules of the SuperNeurons paper, from the order of its steps alone.

An order of steps fixes which value lives when: a read takes the latest value, which lives from its making to its last
read.
With offloading, the output of a checkpoint leaves after its last read in the forward pass and returns for the backward
pass by the step of the checkpoint before its first reader. In AlexNet this is the paper's "one convolution ahead";
where forks and joins lie between convolutions, as in residual networks, waiting for convolutions alone would hold more
than the paper reports. Nothing here plans for a run; our planner's figure beside the paper's is `activation_peak`.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: liveness analysis and unified tensor pool.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bathyal.layers.graph import Graph, Phase, Role
from bathyal.scheduler.plan.steps import NO_TENSOR, Plan

from .layers import CHECKPOINTS, IMAGES, NO_VALUE, PaperNetwork, Step


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that live at one step.

    Attributes:
        nbytes: activations and their gradients.
        position: of the first such step in the order.
        step: what runs there.
    """

    nbytes: int
    position: int
    step: Step


@dataclass(slots=True)
class Lifetime:
    """The life of a value, and of those written over it, in memory.

    Attributes:
        value: that it begins with.
        nbytes: its size.
        birth: position in the order that makes it.
        death: position that reads it last.
        leaves: the last position before the turn from forward to backward that makes or reads it.
        returns: the first position after the turn that reads it; before `birth` where none does.
    """

    value: int
    nbytes: int
    birth: int
    death: int
    leaves: int
    returns: int


def layer_order(network: PaperNetwork) -> list[Step]:
    """The order of every layer forward, then every layer backward in reverse: 2 N steps, nothing computed again."""
    numbers = range(len(network.layers))
    return [Step(n, backward=False) for n in numbers] + [Step(n, backward=True) for n in reversed(numbers)]


def find_lifetimes(network: PaperNetwork, order: Sequence[Step]) -> list[Lifetime]:
    """Find which value lives when in an order, all forward steps of which read what earlier ones made."""
    turn = next((p for p, step in enumerate(order) if step.backward), len(order))
    found: list[Lifetime] = []
    current = {IMAGES: Lifetime(IMAGES, 0, 0, 0, 0, -1)}
    for position, step in enumerate(order):
        operands = network.operands(step)
        for value in operands.reads:
            life = current[value]
            life.death = position
            if position < turn:
                life.leaves = position
            elif life.returns < life.birth:
                life.returns = position
        for value in operands.makes:
            if value == operands.makes[0] and operands.overwritten != NO_VALUE:
                current[value] = current[operands.overwritten]
                current[value].death = position
            else:
                current[value] = Lifetime(value, network.nbytes(value), position, position, position, -1)
                found.append(current[value])
    return found


def baseline_bytes(network: PaperNetwork) -> int:
    """Memory of a step in which nothing is ever freed: Σ (lᶠᵢ + lᵇᵢ), a gradient written over another counted once."""
    return sum(life.nbytes for life in find_lifetimes(network, layer_order(network)))


def live_bytes(
    network: PaperNetwork, order: Sequence[Step], *, offload: bool = False, prefetch: bool = True
) -> list[int]:
    """Bytes that live at each step of an order.

    Args:
        network: in the paper's layers.
        order: of its steps.
        offload: whether outputs of checkpoints are elsewhere between the forward and the backward pass.
        prefetch: whether they are back by the backward step of the checkpoint before the first that reads them, or just
            then.
    """
    checkpoints = [
        position
        for position, step in enumerate(order)
        if prefetch and step.backward and network.layers[step.layer].kind in CHECKPOINTS
    ]
    moved = {t for layer in network.layers if layer.kind in CHECKPOINTS for t in layer.outputs} if offload else set()
    spans: list[tuple[int, int, int]] = []
    for life in find_lifetimes(network, order):
        if life.value not in moved:
            spans.append((life.birth, life.death, life.nbytes))
            continue
        spans.append((life.birth, life.leaves, life.nbytes))
        if life.returns >= life.birth:
            before = bisect_left(checkpoints, life.returns)
            # Before the first checkpoint of the backward pass there is nothing to hide a transfer behind.
            fetched = checkpoints[before - 1] if before else life.returns
            spans.append((fetched, life.death, life.nbytes))
    return _sum_spans(spans, len(order))


def peak(network: PaperNetwork, order: Sequence[Step], *, offload: bool = False, prefetch: bool = True) -> Peak:
    """The most bytes that live at one step of an order; arguments as for `live_bytes`."""
    live = live_bytes(network, order, offload=offload, prefetch=prefetch)
    position = max(range(len(live)), key=live.__getitem__)
    return Peak(live[position], position, order[position])


def activation_peak(plan: Plan, graph: Graph) -> int:
    """What the paper counts, of one of our plans: the most bytes of activations and their gradients at one step.

    Everything that the forward pass leaves for the backward pass counts, such as places of maxima and statistics.
    Parameters, their gradients, momentum, the batch and workspace do not, nor does what an output takes over.
    """
    of_parameters = {t for op in graph.ops if op.phase is Phase.UPDATE for t in op.inputs}
    counted = [
        life
        for life in plan.instances
        if life.tensor != NO_TENSOR
        and graph.tensors[life.tensor].role in (Role.ACTIVATION, Role.GRADIENT)
        and life.tensor not in of_parameters
    ]
    born = {(life.birth, life.address, life.nbytes) for life in counted}
    # An instance that ends where one of the same place begins has been overwritten: that step counts them once.
    return max(
        _sum_spans(
            (
                (s.birth, s.death - (s.birth < s.death and (s.death, s.address, s.nbytes) in born), s.nbytes)
                for s in counted
            ),
            len(plan.steps),
        ),
        default=0,
    )


def _sum_spans(spans: Iterable[tuple[int, int, int]], steps: int) -> list[int]:
    """For each step the sum of the bytes of the spans (first, last, bytes) around it."""
    change = [0] * (steps + 1)
    for first, last, nbytes in spans:
        change[first] += nbytes
        change[last + 1] -= nbytes
    live, total = [], 0
    for delta in change[:-1]:
        total += delta
        live.append(total)
    return live
