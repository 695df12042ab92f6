"""A lower bound on the time of every plan of a chain, from a knapsack instead of a table.

It holds for every plan that runs the blocks of the chain whole, each backward pass with one of the block's options: for
all plans that the dynamic program searches, and also for plans that drop early what they stored. When the loss is
computed, each block either holds what one of its options saves, or has run without saving and runs forward once more.
Choosing for each block is a multiple-choice knapsack, and the bound is its linear relaxation. It is lower than the
bound of `dp` with sizes rounded down, but takes milliseconds for chains of any length.

Not checked: the chain's numbers. Source: ours; with one option for each block it is a plain knapsack.
"""

from __future__ import annotations

from .hull import Hull, HullEdge, find_lower_hull
from .types import Chain, ChainBlock


def chain_bound_seconds(chain: Chain, budget_bytes: int) -> float:
    """The seconds that no plan of the chain within `budget_bytes`, which count the chain's input, can go below."""
    hulls: dict[ChainBlock, Hull] = {}
    seconds = 0.0
    edges: list[HullEdge] = []
    for block in chain.blocks[:-1]:
        if block not in hulls:
            hulls[block] = _find_hull(block)
        nothing_held, steps = hulls[block]
        seconds += nothing_held
        edges += steps
    loss = chain.blocks[-1].options[0]
    seconds += loss.forward_seconds + loss.backward_seconds
    room = budget_bytes - chain.blocks[0].input_bytes
    for saved_per_byte, nbytes in sorted(edges, reverse=True):
        held = min(nbytes, max(room, 0))
        room -= held
        seconds -= saved_per_byte * held
    return seconds


def _find_hull(block: ChainBlock) -> Hull:
    """The least seconds of a block over the bytes that it holds when the loss is computed."""
    seconds = [o.forward_seconds + o.backward_seconds for o in block.options]
    first_run = min(block.plain_forward_seconds, *(o.forward_seconds for o in block.options))
    return find_lower_hull([0, *(o.saved_bytes for o in block.options)], [min(seconds) + first_run, *seconds])
