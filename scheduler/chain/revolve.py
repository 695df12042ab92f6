"""Binomial checkpointing, a baseline: the fewest forward steps for a number of checkpoints, all blocks taken as equal.

Only inputs of blocks are stored, in `slots` slots of which the first holds the chain's own input; a block saves what
its backward pass reads right before that pass and at no other time. So even with a slot for every block each block but
the last runs forward twice. With β(s, r) = C(s + r, s) and r the least number for which l <= β(s, r), reversing l
blocks with s slots takes

    t(l, s) = r l - β(s + 1, r - 1)

forward steps beside the l that save, and no schedule takes fewer. It stores input k of the l where

    t(l, s) = k + t(l - k, s - 1) + t(k, s)

holds, for instance at k = min(β(s, r - 1), l - β(s - 1, r - 1)): the last such block, whose input in a network is
seldom the largest. Neither sizes nor seconds are looked at.

Not checked: whether the steps fit any budget. Source: Griewank & Walther, "Algorithm 799: revolve", ACM TOMS 26 (2000),
equations (1) to (3), as arXiv 1911.13214, section 5, compares it.
"""

from __future__ import annotations

import math

from ...memory.errors import ConfigError
from .step_writer import StepWriter
from .types import Chain, ChainStep


def count_most_slots(chain: Chain) -> int:
    """Return the number of slots beyond which more make no plan faster."""
    return max(len(chain.blocks) - 2, 1)


def write_revolve_steps(chain: Chain, slots: int) -> tuple[ChainStep, ...]:
    """Write the plan with `slots` checkpoints, the chain's input among them; every block saves by its first option.

    Raises:
        ConfigError: no slot.
    """
    if slots < 1:
        raise ConfigError("strategy 'revolve'", "at least one checkpoint", str(slots))
    count = len(chain.blocks) - 1
    writer = StepWriter(chain)
    splits: dict[tuple[int, int], int] = {}
    if not count:
        writer.run_backward(0)
    pending = [(0, count, slots)] if count else []
    while pending:
        start, length, free = pending.pop()
        if length == 1:
            writer.save(start, 0)
            if start == count - 1:
                writer.run_backward(count)
            writer.run_backward(start)
            continue
        if (length, free) not in splits:
            splits[length, free] = _choose_split(length, free)
        split = splits[length, free]
        writer.run_to(start, start + split)
        pending += [(start, split, free), (start + split, length - split, free - 1)]
    return tuple(writer.steps)


def _count_repetitions(length: int, slots: int) -> int:
    """Count how often a block runs at most beside the run that saves: the least r for which β(s, r) >= l."""
    assert slots >= 1 or length == 1, "the first checkpoint is the input of the blocks"
    repeated = 0
    while length > math.comb(slots + repeated, slots):
        repeated += 1
    return repeated


def _choose_split(length: int, slots: int) -> int:
    """Choose the block whose input is stored, k of the module's docstring."""
    repeated = _count_repetitions(length, slots)
    right = math.comb(slots - 1 + repeated - 1, slots - 1)
    return min(math.comb(slots + repeated - 1, slots), length - right)
