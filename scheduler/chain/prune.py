"""Long chains are planned with fewer options of each block: this decides which options are kept.

The cost of an option is its seconds, plus a price for each byte that it saves until the backward pass, plus another
price for each byte of its peak. An option is kept if it is the cheapest one at some pair of prices. In a long run of
equal blocks two options can be mixed in any share, so the plan hardly ever gets slower for want of the others. The
options that save the fewest bytes and those of the lowest peaks are kept in any case, so no budget becomes too small.
Prices are tried on a grid, from nothing to so much that only bytes count.

Not checked: the chain's numbers. Source: ours; the supported points of a Pareto set (Ehrgott, Multicriteria
Optimization).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .types import Chain, ChainBlock, ChainOption, ChainStep, ForwardSave

PRICES = (0.0, *(0.01 * 2.0**k for k in range(0, 10)))
"""Prices of as many bytes as the block can save at most, in units of the block's fastest seconds."""


@dataclass(frozen=True, slots=True)
class PrunedChain:
    """A chain with fewer options than the whole one.

    Attributes:
        chain: the same blocks with fewer options.
        options: for each block the indices that its options have in the whole chain.
    """

    chain: Chain
    options: tuple[tuple[int, ...], ...]

    def restore_options(self, steps: Iterable[ChainStep]) -> tuple[ChainStep, ...]:
        """Name the options of a plan's steps by their indices in the whole chain."""
        return tuple(
            ForwardSave(step.block, self.options[step.block][step.option]) if isinstance(step, ForwardSave) else step
            for step in steps
        )


def prune_options(chain: Chain) -> PrunedChain:
    """Drop the options of each block that are not the cheapest at any pair of prices."""
    known: dict[ChainBlock, tuple[ChainBlock, tuple[int, ...]]] = {}
    for block in chain.blocks:
        if block not in known:
            kept = _choose_options(block.options)
            known[block] = replace(block, options=tuple(block.options[i] for i in kept)), kept
    pruned = [known[block] for block in chain.blocks]
    return PrunedChain(Chain(tuple(block for block, _ in pruned)), tuple(kept for _, kept in pruned))


def _choose_options(options: tuple[ChainOption, ...]) -> tuple[int, ...]:
    """Choose the options, by index, that are the cheapest at some prices, and those that take the fewest bytes."""
    most = max(o.saved_bytes for o in options) or 1
    merits = [(o.forward_seconds + o.backward_seconds, o.saved_bytes / most, _peak_bytes(o) / most) for o in options]
    unit = min(n[0] for n in merits) or 1.0
    count = range(len(options))
    best = {
        min(count, key=lambda i: (merits[i][0] + unit * (held * merits[i][1] + needed * merits[i][2]), i))
        for held in PRICES
        for needed in PRICES
    }
    best.add(min(count, key=lambda i: (merits[i][1], merits[i][2], i)))
    best.add(min(count, key=lambda i: (merits[i][2], merits[i][1], i)))
    best.add(min(count, key=lambda i: (options[i].saved_bytes + max(options[i].forward_transient_bytes, 0), i)))
    best.add(min(count, key=lambda i: (options[i].saved_bytes + options[i].backward_transient_bytes, i)))
    return tuple(sorted(best))


def _peak_bytes(option: ChainOption) -> int:
    return option.saved_bytes + max(option.forward_transient_bytes, option.backward_transient_bytes)
