"""Long chains: groups of identical blocks taken as one block each, so that the exact solver has little to do.

A group of g blocks of one run has, for each option of its blocks, g options of its own: the last t = 1..g blocks are
saved in the first pass; for t < g the input of the first of them is kept too, and the other g - t blocks run again, all
saved, once the last t are done. The bytes that a pass of a group needs are those of a replay, so grouping loses choices
but no precision. Blocks that fill no group stay single.

Not checked: the chain's numbers. Source: ours; within 0.1 % of the exact solver on chains of hundreds of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ...memory.errors import unreachable
from .dp import ExactSolver, choose_slots, make_exact_solver
from .simulate import simulate_chain
from .states import index_states
from .step_writer import StepWriter
from .types import (
    Backward,
    Chain,
    ChainBlock,
    ChainOption,
    ChainSolution,
    ChainStep,
    ForwardCheckpoint,
    ForwardDiscard,
    ForwardSave,
    clamp_backward_transient,
)

GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Numbers of blocks of a group that are tried."""


@dataclass(frozen=True, slots=True)
class GroupedChain:
    """A chain whose blocks are groups of the blocks of another chain, the whole one.

    Attributes:
        chain: the groups as blocks; option t - 1 + g·k of a group of g blocks saves the last t of them with option k.
        first: the whole chain's first block of each group, and last its number of blocks.
    """

    chain: Chain
    first: tuple[int, ...]


def count_groups(chain: Chain, size: int) -> int:
    """Count the blocks of what `group_chain` makes, without making it."""
    return len(_list_starts(chain, size))


def _list_starts(chain: Chain, size: int) -> list[int]:
    """List the first block of each group; the remainder of a run, and the loss, stay single."""
    states, starts, i = index_states(chain), [], 0
    while i < len(chain.blocks):
        starts.append(i)
        run = int(states.run_last[i]) - i + 1
        single = i + 1 == len(chain.blocks) or size < 2 or run < size or run % size
        i += 1 if single else size
    return starts


def group_chain(chain: Chain, size: int) -> GroupedChain:
    """Join every `size` neighbours of a run of identical blocks; the remainder of a run stays in front, single."""
    blocks = chain.blocks
    first = (*_list_starts(chain, size), len(blocks))
    grouped: list[ChainBlock] = []
    known: dict[tuple[ChainBlock, int, int], ChainBlock] = {}
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


def _join(blocks: tuple[ChainBlock, ...], following: ChainBlock) -> ChainBlock:
    """Make one block of identical blocks, which `following` follows."""
    size, block = len(blocks), blocks[0]
    inputs = [b.input_bytes for b in blocks] + [following.input_bytes]
    gradients = [b.input_gradient_bytes for b in blocks] + [following.input_gradient_bytes]

    def plain_peak(begin: int, end: int) -> int:
        """Peak of plain forward passes from x_begin to x_end, beside x_0, which is kept."""
        needs = [
            (inputs[q] if q else 0) + inputs[q + 1] + max(blocks[q].plain_forward_transient_bytes, 0)
            for q in range(begin, end)
        ]
        return max(needs, default=0)

    def save_peak(begin: int, end: int, option: int) -> int:
        """Peak of the forward passes that save blocks begin..end-1, without x_begin."""
        held = peak = 0
        for q in range(begin, end):
            choice = blocks[q].options[option]
            peak = max(peak, held + choice.saved_bytes + max(choice.forward_transient_bytes, 0))
            held += choice.saved_bytes
        return peak

    def backward_peak(begin: int, end: int, option: int) -> int:
        """Peak of the backward passes of blocks begin..end-1, all saved, with gradients, without x_begin."""
        peak, held = 0, sum(blocks[q].options[option].saved_bytes for q in range(begin, end))
        for q in range(end - 1, begin - 1, -1):
            choice = blocks[q].options[option]
            transient = clamp_backward_transient(choice, gradients[q], gradients[q + 1])
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
                ChainOption(
                    saved,
                    cut * block.plain_forward_seconds + t * choice.forward_seconds,
                    cut * choice.forward_seconds + size * choice.backward_seconds,
                    forward - saved,
                    backward - saved - gradients[0] - gradients[size],
                )
            )
    return ChainBlock(
        inputs[0],
        gradients[0],
        size * block.plain_forward_seconds,
        plain_peak(0, size) - inputs[size],
        tuple(options),
    )


def expand_groups(chain: Chain, grouped: GroupedChain, steps: Iterable[ChainStep]) -> tuple[ChainStep, ...]:
    """Write the whole chain's steps that steps of groups stand for."""
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
                option, cut = _split_option(step.option, size)
                if cut:
                    writer.run_to(begin, begin + cut)
                for q in range(begin + cut, end):
                    writer.save(q, option)
            case Backward():
                option, cut = _split_option(chosen.get(step.block, 0), size)
                for q in range(end - 1, begin + cut - 1, -1):
                    writer.run_backward(q)
                for q in range(begin, begin + cut):
                    writer.save(q, option)
                for q in range(begin + cut - 1, begin - 1, -1):
                    writer.run_backward(q)
            case _:
                unreachable(step)
    return tuple(writer.steps)


def _split_option(option: int, size: int) -> tuple[int, int]:
    """Split an option of a group into the option of its blocks and how many blocks in front are not saved at first."""
    return option // size, size - 1 - option % size


class GroupSolver:
    """The exact solver of a chain where neighbours of a run are taken as one; `make_group_solver` makes one.

    Args:
        chain: the whole chain.
        grouped: the chain of groups.
        solver: the exact solver of the chain of groups; None where even that chain is too long for it.
    """

    def __init__(self, chain: Chain, grouped: GroupedChain, solver: ExactSolver | None) -> None:
        self._chain, self._grouped, self._solver = chain, grouped, solver

    def solve(self, budget_bytes: int) -> ChainSolution | None:
        """Find the fastest plan of the whole chain within at most the solver's budget; None where none was found."""
        solution = self._solver.solve(budget_bytes) if self._solver else None
        if solution is None:
            return None
        steps = expand_groups(self._chain, self._grouped, solution.steps)
        return ChainSolution(steps, simulate_chain(self._chain, steps)[1], solution.unit_bytes)


def make_group_solver(chain: Chain, budget_bytes: int, size: int, slots: int | None = None) -> GroupSolver:
    """Group a chain and make the exact solver of its groups, its table still empty.

    Args:
        chain: a chain whose numbers make sense.
        budget_bytes: the largest budget that will be asked for, the chain's input included; at least 1.
        size: blocks of a group.
        slots: the number of units of that budget; by default `dp.choose_slots` of the chain of groups.
    """
    grouped = group_chain(chain, size)
    slots = slots or choose_slots(grouped.chain)
    solver = make_exact_solver(grouped.chain, budget_bytes, slots) if slots else None
    return GroupSolver(chain, grouped, solver)
