"""A replay of a chain's plan, which says what the plan needs and takes.

The replay trusts nothing of the planner's: it follows the steps, asks for every operand and counts bytes and seconds.

Bytes while a step runs, beside all other residents (x_i is the input of block i, δ_i its gradient):

    ForwardDiscard(i), ForwardCheckpoint(i)   x_i + x_{i+1} + plain transient
    ForwardSave(i, k)                         x_i + saved_k + forward transient
    Backward(i)                               x_i + saved_k + δ_i + δ_{i+1} + backward transient

Transients are signed, but a step never takes less than what is there before it or after it. A transient that says
otherwise counts as the least that makes sense: 0 for forward passes, and for the backward pass
`types.clamp_backward_transient`.

Not checked: that the numbers describe a network. Source: Herrmann, Beaumont et al., arXiv 1911.13214, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...memory.errors import PlanError, unreachable
from .types import (
    Backward,
    Chain,
    ChainOption,
    ChainStep,
    ForwardCheckpoint,
    ForwardDiscard,
    ForwardSave,
    check_chain,
    clamp_backward_transient,
)


def simulate_chain(chain: Chain, steps: Iterable[ChainStep]) -> tuple[int, float]:
    """Replay a plan and return its peak in bytes, which counts the chain's input, and its seconds.

    Raises:
        PlanError: an operand is missing, something is computed that is there, or the end is not reached.
    """
    check_chain(chain)
    blocks = chain.blocks
    last = len(blocks) - 1
    alone = {0}  # inputs held by themselves, not as part of what the block before saved
    saved: dict[int, ChainOption] = {}
    gradient = last + 1  # the index of the gradient that is there
    resident = peak = blocks[0].input_bytes
    seconds = 0.0

    def gradient_bytes(index: int) -> int:
        return blocks[index].input_gradient_bytes if index <= last else 0

    def require(holds: bool, step: ChainStep, expected: str) -> None:
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
                peak = max(peak, resident + new + clamp_backward_transient(option, new, old))
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
