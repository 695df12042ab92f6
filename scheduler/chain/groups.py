"""Long chains: groups of identical blocks taken as one block each, so that the exact program is small.

A group of g blocks of one run has, for each option of its blocks, g options of its own: the last t = 1..g blocks are
saved in the first pass; for t < g the input of the first of them is kept too, and the other g - t blocks run again, all
saved, once the last t are done. What a group's pass needs is replayed in bytes, so nothing is lost but choices. Blocks
that fill no group stay single.

Not checked: the chain's numbers. Source: ours; within 0.1 % of the exact program on chains of hundreds of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ...memory.errors import unreachable
from .states import StepWriter, index_states
from .types import (
    Backward,
    Block,
    Chain,
    ForwardCheckpoint,
    ForwardDiscard,
    ForwardSave,
    Option,
    Step,
    sensible_backward_transient,
)


@dataclass(frozen=True, slots=True)
class GroupedChain:
    """A chain of groups.

    Attributes:
        chain: groups as blocks; option t - 1 + g·k saves the last t blocks with option k.
        first: first block of each group, and the number of blocks.
    """

    chain: Chain
    first: tuple[int, ...]


def group_count(chain: Chain, size: int) -> int:
    """How many blocks `group_chain` makes."""
    return len(_starts(chain, size))


def _starts(chain: Chain, size: int) -> list[int]:
    """The first block of each group; the remainder of a run, and the loss, stay single."""
    rows, starts, i = index_states(chain), [], 0
    while i < len(chain.blocks):
        starts.append(i)
        run = int(rows.last[i]) - i + 1
        single = i + 1 == len(chain.blocks) or size < 2 or run < size or run % size
        i += 1 if single else size
    return starts


def group_chain(chain: Chain, size: int) -> GroupedChain:
    """Join every `size` neighbours of a run of identical blocks; the remainder of a run stays in front, single."""
    blocks = chain.blocks
    first = (*_starts(chain, size), len(blocks))
    grouped: list[Block] = []
    known: dict[tuple[Block, int, int], Block] = {}
    for begin, end in pairwise(first):
        if end == begin + 1:
            grouped.append(blocks[begin])
            continue
        following = blocks[end]
        key = (blocks[begin], following.input_bytes, following.input_gradient_bytes)
        if key not in known:
            known[key] = _join(blocks[begin:end], following)
        grouped.append(known[key])
    return GroupedChain(Chain(tuple(grouped)), first)


def _join(blocks: tuple[Block, ...], following: Block) -> Block:
    size, block = len(blocks), blocks[0]
    inputs = [b.input_bytes for b in blocks] + [following.input_bytes]
    gradients = [b.input_gradient_bytes for b in blocks] + [following.input_gradient_bytes]

    def plain_peak(begin: int, end: int) -> int:
        """Peak of plain forwards from x_begin to x_end beside x_0, which is kept."""
        needs = [
            (inputs[q] if q else 0) + inputs[q + 1] + max(blocks[q].plain_forward_transient_bytes, 0)
            for q in range(begin, end)
        ]
        return max(needs, default=0)

    def save_peak(begin: int, end: int, option: int) -> int:
        """Peak of saving blocks begin..end-1, without x_begin."""
        held = peak = 0
        for q in range(begin, end):
            choice = blocks[q].options[option]
            peak = max(peak, held + choice.saved_bytes + max(choice.forward_transient_bytes, 0))
            held += choice.saved_bytes
        return peak

    def backward_peak(begin: int, end: int, option: int) -> int:
        """Peak of the backwards of begin..end-1, all saved, without x_begin, with gradients."""
        peak, held = 0, sum(blocks[q].options[option].saved_bytes for q in range(begin, end))
        for q in range(end - 1, begin - 1, -1):
            choice = blocks[q].options[option]
            transient = sensible_backward_transient(choice, gradients[q], gradients[q + 1])
            peak = max(peak, held + gradients[q] + gradients[q + 1] + transient)
            held -= choice.saved_bytes
        return peak

    options = []
    for k, choice in enumerate(block.options):
        for t in range(1, size + 1):
            cut = size - t
            kept = inputs[cut] if cut else 0
            saved = kept + t * choice.saved_bytes
            forward = max(plain_peak(0, cut), kept + save_peak(cut, size, k))
            backward = kept + backward_peak(cut, size, k)
            if cut:
                backward = max(backward, gradients[cut] + save_peak(0, cut, k), backward_peak(0, cut, k))
            options.append(
                Option(
                    saved,
                    cut * block.plain_forward_seconds + t * choice.forward_seconds,
                    cut * choice.forward_seconds + size * choice.backward_seconds,
                    forward - saved,
                    backward - saved - gradients[0] - gradients[size],
                )
            )
    return Block(
        inputs[0],
        gradients[0],
        size * block.plain_forward_seconds,
        plain_peak(0, size) - inputs[size],
        tuple(options),
    )


def expand_groups(chain: Chain, grouped: GroupedChain, steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps of the blocks that steps of groups stand for."""
    writer = StepWriter(chain)
    chosen: dict[int, int] = {}
    for step in steps:
        begin, end = grouped.first[step.block], grouped.first[step.block + 1]
        size = end - begin
        match step:
            case ForwardDiscard():
                writer.discard(begin, end)
            case ForwardCheckpoint():
                writer.run_to(begin, end)
            case ForwardSave():
                chosen[step.block] = step.option
                option, cut = _parts(step.option, size)
                if cut:
                    writer.run_to(begin, begin + cut)
                for q in range(begin + cut, end):
                    writer.save(q, option)
            case Backward():
                option, cut = _parts(chosen.get(step.block, 0), size)
                for q in range(end - 1, begin + cut - 1, -1):
                    writer.backward(q)
                for q in range(begin, begin + cut):
                    writer.save(q, option)
                for q in range(begin + cut - 1, begin - 1, -1):
                    writer.backward(q)
            case _:
                unreachable(step)
    return tuple(writer.steps)


def _parts(option: int, size: int) -> tuple[int, int]:
    """The blocks' option, and how many blocks in front are not saved at first."""
    return option // size, size - 1 - option % size
