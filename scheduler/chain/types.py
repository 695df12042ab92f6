"""What a chain of blocks is, and the steps of a plan for it.

A chain is a network cut into blocks, each of which reads the output of the block before it alone. A plan says when each
block runs forward, what it saves, and when it runs backward. A plan is *memory-persistent*: the stored input of a
block, and what the block saves, stay until the backward step of that block.

`simulate.simulate_chain` replays a plan and says which bytes and seconds every step takes.

Not checked: that the numbers describe a network. Source: Herrmann, Beaumont et al., "Optimal checkpointing for
heterogeneous chains" (arXiv 1911.13214), section 3; signed transients and several options per block are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from ...memory.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ChainOption:
    """One way to run a block's forward pass so that its backward pass can follow.

    Transient bytes are signed, as a pass may free what it has used.

    Attributes:
        saved_bytes: all that the block saves, its output included, its input excluded.
        forward_seconds: time of this forward pass.
        backward_seconds: time of the backward pass that reads what was saved.
        forward_transient_bytes: forward peak - input - saved.
        backward_transient_bytes: backward peak - input - saved - gradient of the input - gradient of the output.
    """

    saved_bytes: int
    forward_seconds: float
    backward_seconds: float
    forward_transient_bytes: int
    backward_transient_bytes: int


@dataclass(frozen=True, slots=True)
class ChainBlock:
    """The numbers of one block of a chain.

    A *plain* forward pass saves nothing but makes the block's output.

    Attributes:
        input_bytes: size of the block's input.
        input_gradient_bytes: size of the gradient of that input; 0 for images.
        plain_forward_seconds: time of the plain forward pass.
        plain_forward_transient_bytes: peak of the plain forward pass - input - output.
        options: the forward passes that save; at least one.
    """

    input_bytes: int
    input_gradient_bytes: int
    plain_forward_seconds: float
    plain_forward_transient_bytes: int
    options: tuple[ChainOption, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Blocks 0..L, of which the last is the loss, not a block of the network.

    The loss block has exactly one option: `saved_bytes` and `forward_seconds` 0 (what it holds for itself lives during
    its own step only), `backward_seconds` the time of loss and gradient together, transients its own. It is run by
    `Backward(L)` alone. Nothing follows it: input and gradient of block L+1 have 0 bytes.

    Attributes:
        blocks: in the order of the forward pass.
    """

    blocks: tuple[ChainBlock, ...]


@dataclass(frozen=True, slots=True)
class ForwardDiscard:
    """Run the block forward, save nothing, and free its input."""

    block: int


@dataclass(frozen=True, slots=True)
class ForwardCheckpoint:
    """Run the block forward, save nothing, and keep its input."""

    block: int


@dataclass(frozen=True, slots=True)
class ForwardSave:
    """Run the block forward, save what the option says, and keep its input."""

    block: int
    option: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Run the block's backward pass; for the last block the loss and its gradient."""

    block: int


ChainStep: TypeAlias = ForwardDiscard | ForwardCheckpoint | ForwardSave | Backward


@dataclass(frozen=True, slots=True)
class ChainSolution:
    """A plan of a chain, or a lower bound on the time of all plans.

    Attributes:
        steps: the plan; empty for a bound, as no plan stands behind it.
        seconds: the time of the plan by its replay, or the bound.
        unit_bytes: the unit to which sizes were rounded.
    """

    steps: tuple[ChainStep, ...]
    seconds: float
    unit_bytes: int


def check_chain(chain: Chain) -> None:
    """Refuse a chain whose numbers make no sense.

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


def clamp_backward_transient(option: ChainOption, gradient_bytes: int, next_gradient_bytes: int) -> int:
    """Raise an option's backward transient to the least that makes sense, `max(-δ_i, -(saved_k + δ_{i+1}))`.

    A step never takes fewer bytes than are there before it or after it.
    """
    return max(option.backward_transient_bytes, -gradient_bytes, -(option.saved_bytes + next_gradient_bytes))
