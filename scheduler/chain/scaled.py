"""The numbers of a chain as the dynamic programs read them: sizes in units of bytes, options without the useless ones.

Each size is rounded on its own, up for plans and down for bounds. `choose_unit_bytes` decides the unit from the budget
and from how many units (slots) the budget may have.

Not checked: the chain itself, see `types.check_chain`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from .pareto import drop_dominated
from .types import Chain, ChainBlock, clamp_backward_transient

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Rounding: TypeAlias = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class ScaledOption:
    """An option of a block, its sizes in units.

    Attributes:
        index: the option's index in its block.
        saved: units that the option saves.
        forward: saved + forward transient.
        backward: saved + both gradients + backward transient.
        extra_seconds: forward + backward seconds, above those of the block's fastest option.
    """

    index: int
    saved: int
    forward: int
    backward: int
    extra_seconds: float

    def units_needed(self, waiting_gradient: int) -> int:
        """Units that the passes of this option need beside the block's input, `max(δ_{l+1} + forward, backward)`.

        Args:
            waiting_gradient: units of δ_{l+1}, the gradient that waits above the interval during the forward pass.
        """
        return max(waiting_gradient + self.forward, self.backward)


@dataclass(frozen=True, slots=True)
class ScaledChain:
    """A chain of n blocks, its sizes in units of bytes.

    Attributes:
        inputs: (n + 1,) units of x_i; the last is 0.
        gradients: (n + 1,) units of δ_i; the last is 0.
        plain: (n,) units of x_{i+1} + transient of the plain forward pass.
        seconds_before: (n + 1,) seconds of all plain forward passes before block i.
        options: options of each block, the fastest first, without those that an earlier one beats in all that counts.
        least_seconds: seconds of the step where nothing is computed twice.
    """

    inputs: Ints
    gradients: Ints
    plain: Ints
    seconds_before: Floats
    options: tuple[tuple[ScaledOption, ...], ...]
    least_seconds: float

    def run_units(self, i: int, stop: int | None = None) -> Ints:
        """Units, beside x_i and the waiting gradient, of running from x_i to x_j, storing nothing between.

        Returns:
            One number for each j = i + 1, …, stop - 1; without `stop` for all up to the loss.
        """
        end = len(self.plain) - 1 if stop is None else stop - 1
        need = self.inputs[i:end] + self.plain[i:end]
        if len(need):
            need[0] = self.plain[i]  # x_i itself is counted elsewhere
        reached: Ints = np.maximum.accumulate(need)
        return reached


def scale_chain(chain: Chain, unit: int = 1, rounding: Rounding = "up") -> ScaledChain:
    """Express every size in units, each rounded on its own towards more bytes ("up") or fewer ("down")."""
    blocks = chain.blocks
    inputs = [_count_units(b.input_bytes, unit, rounding) for b in blocks] + [0]
    gradients = [_count_units(b.input_gradient_bytes, unit, rounding) for b in blocks] + [0]
    known: dict[tuple[ChainBlock, int], tuple[ScaledOption, ...]] = {}
    options, least = [], 0.0
    for i, block in enumerate(blocks):
        least += _fastest_seconds(block)
        next_gradient = blocks[i + 1].input_gradient_bytes if i + 1 < len(blocks) else 0
        key = block, next_gradient
        if key not in known:
            known[key] = _scale_options(block, next_gradient, unit, rounding)
        options.append(known[key])
    plain = [
        inputs[i + 1] + _count_units(max(b.plain_forward_transient_bytes, 0), unit, rounding)
        for i, b in enumerate(blocks)
    ]
    return ScaledChain(
        np.array(inputs, np.int64),
        np.array(gradients, np.int64),
        np.array(plain, np.int64),
        np.concatenate([[0.0], np.cumsum([b.plain_forward_seconds for b in blocks])]),
        tuple(options),
        least,
    )


def _count_units(nbytes: int, unit: int, rounding: Rounding) -> int:
    return -(-nbytes // unit) if rounding == "up" else nbytes // unit


def _fastest_seconds(block: ChainBlock) -> float:
    return min(o.forward_seconds + o.backward_seconds for o in block.options)


def _scale_options(
    block: ChainBlock, next_gradient_bytes: int, unit: int, rounding: Rounding
) -> tuple[ScaledOption, ...]:
    """Scale the options of a block and drop those that a faster one, or an equally fast one, beats in all units."""
    fastest = _fastest_seconds(block)
    gradient = _count_units(block.input_gradient_bytes, unit, rounding)
    next_gradient = _count_units(next_gradient_bytes, unit, rounding)
    found = []
    for index, option in enumerate(block.options):
        saved = _count_units(option.saved_bytes, unit, rounding)
        backward_bytes = clamp_backward_transient(option, block.input_gradient_bytes, next_gradient_bytes)
        backward = saved + gradient + next_gradient + _count_units(backward_bytes, unit, rounding)
        found.append(
            ScaledOption(
                index,
                saved,
                saved + _count_units(max(option.forward_transient_bytes, 0), unit, rounding),
                max(backward, saved + next_gradient, gradient),
                option.forward_seconds + option.backward_seconds - fastest,
            )
        )
    found.sort(key=lambda o: (o.extra_seconds, o.saved, o.backward, o.forward))
    return tuple(drop_dominated(found, lambda o: (o.saved, o.forward, o.backward)))


def choose_unit_bytes(chain: Chain, budget_bytes: int, slots: int) -> int:
    """Choose the unit of a budget: the one that all sizes share, where the budget has at most `slots` of it.

    With that unit nothing is rounded. Otherwise it is budget / slots, rounded up.
    """
    shared = 0
    blocks = chain.blocks
    for i, block in enumerate(blocks):
        next_gradient = blocks[i + 1].input_gradient_bytes if i + 1 < len(blocks) else 0
        shared = math.gcd(shared, block.input_bytes, block.input_gradient_bytes)
        shared = math.gcd(shared, max(block.plain_forward_transient_bytes, 0))
        for option in block.options:
            backward = clamp_backward_transient(option, block.input_gradient_bytes, next_gradient)
            shared = math.gcd(shared, option.saved_bytes, max(option.forward_transient_bytes, 0), backward)
    if shared and budget_bytes // shared <= slots:
        return shared
    return -(-budget_bytes // slots)
