"""Random numbers of the data, which depend on nothing that was drawn before.

They come from the counter-based generator Philox-4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
2011), keyed by (seed, use) with (epoch, index) as the counter.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Use(IntEnum):
    """What random numbers are for; streams of different uses are independent. Checkpoints rely on these numbers."""

    SHUFFLE = 1
    SYNTHETIC = 2
    TEMPLATE = 3
    AUGMENT = 4
    SPLIT = 5


def make_random_stream(seed: int, use: Use, epoch: int = 0, index: int = 0) -> np.random.Philox:
    """Return the random bits that belong to (seed, use, epoch, index), whatever was drawn before."""
    key = np.array([seed, use], dtype=np.uint64)
    # The two low words count the draws within the stream.
    return np.random.Philox(key=key, counter=np.array([0, 0, index, epoch], dtype=np.uint64))


def draw_order(length: int, seed: int, use: Use, epoch: int = 0) -> npt.NDArray[np.int64]:
    """Return a random order of `length` samples.

    It sorts raw words: numpy promises Philox's raw words for all its versions, but not `Generator.permutation`, and a
    run must resume the same under the next numpy.
    """
    words = make_random_stream(seed, use, epoch).random_raw(length)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)
