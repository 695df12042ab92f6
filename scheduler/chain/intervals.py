"""From the choice of each interval of blocks to the steps of a plan, for all solvers that cut a chain into intervals.

An interval (i, l) of blocks, both ends included, either saves its first block with one of its options, or runs plain
forward passes from i to a block j, whose input is stored, and is split there. Which of the two, and with how much
memory, is the solver's choice; the order of the steps follows from it alone. Not checked: whether the steps fit.

Source: the states of Herrmann, Beaumont et al., arXiv 1911.13214.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .step_writer import StepWriter
from .types import Chain, ChainStep

_BACKWARD_ALONE = -1
"""In place of the last block of an interval: the backward pass of its first block is what is left to write."""


@dataclass(frozen=True, slots=True)
class Save:
    """The first block of an interval saves by one of its options.

    Attributes:
        option: index of the option.
        rest: the memory of the interval from the next block on.
    """

    option: int
    rest: int


@dataclass(frozen=True, slots=True)
class Split:
    """An interval is split at a block whose input is stored; what lies before it is recomputed afterwards.

    Attributes:
        block: the first block of the right part.
        rest: the memory of the right part; the left part has that of the whole interval.
    """

    block: int
    rest: int


IntervalChoice: TypeAlias = Save | Split


ChooseInterval: TypeAlias = Callable[[int, int, int], IntervalChoice]
"""Returns the choice for an interval, given its first block, its last block and its memory."""


def write_intervals(chain: Chain, memory: int, choose: ChooseInterval) -> tuple[ChainStep, ...]:
    """Write the plan of a whole chain from what is chosen for each interval.

    Args:
        chain: the chain to plan.
        memory: what the interval of all blocks may take, in the unit that `choose` counts in.
        choose: asked once for each interval that the plan has.
    """
    writer = StepWriter(chain)
    pending = [(0, len(chain.blocks) - 1, memory)]
    while pending:
        i, last, own = pending.pop()
        if last == _BACKWARD_ALONE:
            writer.run_backward(i)
            continue
        choice = choose(i, last, own)
        if isinstance(choice, Save):
            writer.save(i, choice.option)
            pending.append((i, _BACKWARD_ALONE, 0))
            if i < last:
                pending.append((i + 1, last, choice.rest))
        else:
            writer.run_to(i, choice.block)
            pending += [(i, choice.block - 1, own), (choice.block, last, choice.rest)]
    return tuple(writer.steps)


def count_steps(chain: Chain, memory: int, choose: ChooseInterval) -> int:
    """Count the steps that `write_intervals` would write, without writing them.

    A plan has at most two intervals for each block, however many steps it has.
    """
    steps = 2 * len(chain.blocks) - 1  # each block saves, the loss does not, and each runs backward
    pending = [(0, len(chain.blocks) - 1, memory)]
    while pending:
        i, last, own = pending.pop()
        choice = choose(i, last, own)
        if isinstance(choice, Save):
            if i < last:
                pending.append((i + 1, last, choice.rest))
        else:
            steps += choice.block - i
            pending += [(i, choice.block - 1, own), (choice.block, last, choice.rest)]
    return steps
