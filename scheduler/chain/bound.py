"""A lower bound on the time of every plan that runs the blocks of a chain whole, each backward with one of its options.

That is every plan that the dynamic programs search, and every plan that drops what it stored early, too. When the loss is computed, each block either holds what one of its options saves, or has run without saving and runs its
forward once more. Choosing for each block is a multiple-choice knapsack; the bound is its linear relaxation. It is lower
than a program with sizes rounded down, but takes no table: chains of any length in milliseconds.

Not checked: the chain's numbers. Source: ours; with one option for each block it is a plain knapsack.
"""

from __future__ import annotations

from .hull import Hull, Segment, lower_hull
from .types import Block, Chain


def chain_bound_seconds(chain: Chain, budget_bytes: int) -> float:
    """No plan of the chain within `budget_bytes`, which count its input, is faster; stored tensors may be dropped early."""
    known: dict[Block, Hull] = {}
    seconds = 0.0
    segments: list[Segment] = []
    for block in chain.blocks[:-1]:
        if block not in known:
            took: list[float] = [o.forward_seconds + o.backward_seconds for o in block.options]
            held_bytes = [0, *(o.saved_bytes for o in block.options)]
            first = min(block.plain_forward_seconds, *(o.forward_seconds for o in block.options))
            known[block] = lower_hull(held_bytes, [min(took) + first, *took])
        nothing_held, steps = known[block]
        seconds += nothing_held
        segments += steps
    loss = chain.blocks[-1].options[0]
    seconds += loss.forward_seconds + loss.backward_seconds
    room = budget_bytes - chain.blocks[0].input_bytes
    for saved_per_byte, nbytes in sorted(segments, reverse=True):
        held = min(nbytes, max(room, 0))
        room -= held
        seconds -= saved_per_byte * held
    return seconds
