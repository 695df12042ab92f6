"""What a chain of blocks is, the steps of a plan for it, and a replay that says what a plan needs and takes.

A plan is *memory-persistent*: a stored input or a block's saved tensors stay until that block's backward step. The
replay trusts nothing of the planner's: it follows the steps, asks for every operand and counts bytes and seconds.

Bytes while a step runs, beside all other residents (x_i is the input of block i, δ_i its gradient):

    ForwardDiscard(i), ForwardCheckpoint(i)   x_i + x_{i+1} + plain transient
    ForwardSave(i, k)                         x_i + saved_k + forward transient
    Backward(i)                               x_i + saved_k + δ_i + δ_{i+1} + backward transient

Transients are signed, as a pass may free what it has used, but a step never takes less than what is there before it or
after it. A transient that says otherwise counts as the least that makes sense: 0 for forwards, and for the backward
`max(-δ_i, -(saved_k + δ_{i+1}))`.

Not checked: that the numbers describe a network. Source: Herrmann, Beaumont et al., "Optimal checkpointing for
heterogeneous chains" (arXiv 1911.13214), section 3; signed transients and several options per block are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ...memory.errors import ConfigError, PlanError, unreachable


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a block's forward so that its backward can follow.

    Attributes:
        saved_bytes: all that the block saves, its output included, its input excluded.
        forward_seconds: time of this forward.
        backward_seconds: time of the backward that reads what it saved.
        forward_transient_bytes: forward peak - input - saved.
        backward_transient_bytes: backward peak - input - saved - gradient of the input - gradient of the output.
    """

    saved_bytes: int
    forward_seconds: float
    backward_seconds: float
    forward_transient_bytes: int
    backward_transient_bytes: int


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the chain.

    Attributes:
        input_bytes: its input.
        input_gradient_bytes: the gradient of its input; 0 for images.
        plain_forward_seconds: time of the forward that saves nothing.
        plain_forward_transient_bytes: peak of that forward - input - output.
        options: the ways to run the forward that saves; at least one.
    """

    input_bytes: int
    input_gradient_bytes: int
    plain_forward_seconds: float
    plain_forward_transient_bytes: int
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Blocks 0..L, of which the last is the loss, not a block of the network.

    The loss block has exactly one option: `saved_bytes` and `forward_seconds` 0 (what it holds for itself lives during
    its own step only), `backward_seconds` the time of loss and gradient together, transients its own. It is run by
    `Backward(L)` alone. Beyond it there is nothing: input and gradient of block L+1 have 0 bytes.
    """

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class ForwardDiscard:
    """Run the block, save nothing, free its input."""

    block: int


@dataclass(frozen=True, slots=True)
class ForwardCheckpoint:
    """Run the block, save nothing, keep its input."""

    block: int


@dataclass(frozen=True, slots=True)
class ForwardSave:
    """Run the block and save what the option says, keep its input."""

    block: int
    option: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Run the block's backward; for the last block the loss and its gradient."""

    block: int


Step: TypeAlias = ForwardDiscard | ForwardCheckpoint | ForwardSave | Backward


@dataclass(frozen=True, slots=True)
class ChainSolution:
    """A plan of a chain, or a bound.

    Attributes:
        steps: the plan; empty where sizes were rounded down, as no plan stands behind a bound.
        seconds: its replayed time, or the bound.
        unit_bytes: what sizes were rounded to.
    """

    steps: tuple[Step, ...]
    seconds: float
    unit_bytes: int


def check_chain(chain: Chain) -> None:
    """Refuse numbers that make no sense.

    Raises:
        ConfigError: no block, a block without options, negative bytes or seconds, a loss with several options.
    """
    if not chain.blocks:
        raise ConfigError("chain", "at least the loss block", "no block")
    for index, block in enumerate(chain.blocks):
        where = f"chain block {index}"
        if not block.options:
            raise ConfigError(where, "at least one option", "none")
        for nbytes in (block.input_bytes, block.input_gradient_bytes, *(o.saved_bytes for o in block.options)):
            if nbytes < 0:
                raise ConfigError(where, "sizes of at least 0 bytes", str(nbytes))
        seconds = [block.plain_forward_seconds]
        for option in block.options:
            seconds += [option.forward_seconds, option.backward_seconds]
        if not all(math.isfinite(s) and s >= 0 for s in seconds):
            raise ConfigError(where, "finite times of at least 0 s", str(seconds))
    if len(chain.blocks[-1].options) != 1:
        raise ConfigError("chain loss block", "one option", str(len(chain.blocks[-1].options)))


def sensible_backward_transient(option: Option, gradient: int, next_gradient: int) -> int:
    """The backward's transient bytes, at least what residents before and after the step imply."""
    return max(option.backward_transient_bytes, -gradient, -(option.saved_bytes + next_gradient))


def simulate_chain(chain: Chain, steps: Iterable[Step]) -> tuple[int, float]:
    """Replay a plan: its peak in bytes, the chain's input included, and its seconds.

    Raises:
        PlanError: an operand is missing, something is computed that is there, or the end is not reached.
    """
    check_chain(chain)
    blocks = chain.blocks
    last = len(blocks) - 1
    alone = {0}  # inputs held by themselves, not as part of what the block before saved
    saved: dict[int, Option] = {}
    gradient = last + 1  # the index of the gradient that is there
    resident = peak = blocks[0].input_bytes
    seconds = 0.0

    def gradient_bytes(index: int) -> int:
        return blocks[index].input_gradient_bytes if index <= last else 0

    def require(holds: bool, step: Step, expected: str) -> None:
        if not holds:
            raise PlanError(f"chain step {step}", expected, "it is not so")

    for step in steps:
        i = step.block
        require(0 <= i <= last, step, f"a block from 0 to {last}")
        block = blocks[i]
        require(i in alone or i - 1 in saved, step, f"input {i} in memory")
        match step:
            case ForwardDiscard() | ForwardCheckpoint():
                require(i < last and i + 1 not in alone and i not in saved, step, f"no input {i + 1} in memory yet")
                output = blocks[i + 1].input_bytes
                peak = max(peak, resident + output + max(block.plain_forward_transient_bytes, 0))
                alone.add(i + 1)
                resident += output
                seconds += block.plain_forward_seconds
                if isinstance(step, ForwardDiscard):
                    require(i in alone, step, f"input {i} held by itself, so that it can be freed")
                    alone.discard(i)
                    resident -= block.input_bytes
            case ForwardSave():
                require(i < last and i + 1 not in alone and i not in saved, step, f"no input {i + 1} in memory yet")
                require(0 <= step.option < len(block.options), step, f"an option of {len(block.options)}")
                option = block.options[step.option]
                peak = max(peak, resident + option.saved_bytes + max(option.forward_transient_bytes, 0))
                saved[i] = option
                resident += option.saved_bytes
                seconds += option.forward_seconds
            case Backward():
                require(gradient == i + 1, step, f"gradient {i + 1} in memory")
                if i == last:
                    option = block.options[0]
                    peak = max(peak, resident + option.saved_bytes + max(option.forward_transient_bytes, 0))
                    seconds += option.forward_seconds
                    resident += option.saved_bytes
                else:
                    require(i in saved, step, f"what block {i} saves in memory")
                    option = saved.pop(i)
                new, old = block.input_gradient_bytes, gradient_bytes(i + 1)
                peak = max(peak, resident + new + sensible_backward_transient(option, new, old))
                resident += new - old - option.saved_bytes
                seconds += option.backward_seconds
                gradient = i
                if i in alone:
                    alone.discard(i)
                    resident -= block.input_bytes
            case _:
                unreachable(step)
    if gradient or alone or saved:
        raise PlanError("chain plan", "every backward done, nothing left", f"gradient {gradient}, {alone}, {saved}")
    return peak, seconds
