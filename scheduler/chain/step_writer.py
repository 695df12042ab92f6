"""Writing the steps of a chain's plan, and the plan that recomputes nothing."""

from __future__ import annotations

from .scaled import scale_chain
from .types import Backward, Chain, ChainStep, ForwardCheckpoint, ForwardDiscard, ForwardSave


class StepWriter:
    """A list of steps that grows; equal steps are one object, as tight plans repeat them by the million.

    Args:
        chain: the chain that the steps are for.

    Attributes:
        steps: what has been written so far.
    """

    def __init__(self, chain: Chain) -> None:
        self._last = len(chain.blocks) - 1
        self._discard = [ForwardDiscard(i) for i in range(self._last + 1)]
        self.steps: list[ChainStep] = []

    def run_to(self, i: int, j: int) -> None:
        """Keep x_i and run forward to x_j, storing nothing between."""
        self.steps.append(ForwardCheckpoint(i))
        self.discard(i + 1, j)

    def discard(self, i: int, j: int) -> None:
        """Run forward from x_i to x_j, keeping neither x_i nor anything between."""
        self.steps += self._discard[i:j]

    def save(self, i: int, option: int) -> None:
        """Run block i forward so that its backward pass can follow; the loss block saves nothing, so it has no step."""
        if i < self._last:
            self.steps.append(ForwardSave(i, option))

    def run_backward(self, i: int) -> None:
        """Run block i backward."""
        self.steps.append(Backward(i))


def keep_everything(chain: Chain) -> tuple[ChainStep, ...]:
    """Write the plan that recomputes nothing and runs each block with its fastest option."""
    writer = StepWriter(chain)
    for i, options in enumerate(scale_chain(chain).options):
        writer.save(i, options[0].index)
    for i in reversed(range(len(chain.blocks))):
        writer.run_backward(i)
    return tuple(writer.steps)
