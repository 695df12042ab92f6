"""A baseline: checkpoints at equal distances, as `torch.utils.checkpoint.checkpoint_sequential` sets them.

The blocks are cut into K segments of n // K blocks, the last of them with what is left over. The forward pass keeps the
input of every segment but saves only the last one whole; going back, each segment before it runs once more, saved
whole. Each block but those of the last segment runs forward twice. Neither sizes nor seconds are looked at.

Not checked: whether the steps fit any budget. Source: Chen et al., "Training deep nets with sublinear memory cost"
(arXiv 1604.06174), as PyTorch does it and arXiv 1911.13214, section 5, compares it.
"""

from __future__ import annotations

from ...memory.errors import ConfigError
from .step_writer import StepWriter
from .types import Chain, ChainStep


def check_segments(blocks: int, segments: int) -> None:
    """Refuse a number of segments into which so many blocks cannot be cut.

    Raises:
        ConfigError: there are fewer segments than 1 or more than blocks; names the nearest number that works.
    """
    most = max(blocks, 1)
    if not 1 <= segments <= most:
        expected = f"1 to {most} segments, as the network has {blocks} blocks"
        nearest = min(max(segments, 1), most)
        raise ConfigError("strategy 'sequential'", expected, str(segments), f"'sequential:{nearest}' is the nearest.")


def count_most_segments(chain: Chain) -> int:
    """Return the largest number of segments: each block of the network is one."""
    return max(len(chain.blocks) - 1, 1)


def write_sequential_steps(chain: Chain, segments: int) -> tuple[ChainStep, ...]:
    """Write the plan with `segments` segments; every block saves by its first option.

    Raises:
        ConfigError: as `check_segments` does.
    """
    count = len(chain.blocks) - 1
    check_segments(count, segments)
    starts = [number * (count // segments) for number in range(segments)]
    ends = [*starts[1:], count]
    writer = StepWriter(chain)
    for start, end in zip(starts[:-1], ends, strict=False):
        writer.run_to(start, end)
    for block in range(starts[-1], count):
        writer.save(block, 0)
    writer.run_backward(count)
    for start, end in reversed(list(zip(starts, ends, strict=True))):
        if end < count:
            for block in range(start, end):
                writer.save(block, 0)
        for block in reversed(range(start, end)):
            writer.run_backward(block)
    return tuple(writer.steps)
