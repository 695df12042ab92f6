"""Data that needs no download: random images with a signal, and scikit-learn's digits.

Decides the pixels from (seed, epoch, batch) alone, batch by batch, so that a data set of any size takes the memory of
one batch. `digits` are the 1,797 grey 8 × 8 images of Alpaydin and Kaynak's "Optical Recognition of Handwritten Digits"
(UCI, 1998) as scikit-learn bundles them. Does not check that a network can learn from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ...memory.arguments import Argument, Number, Whole, read_fields, show
from ...memory.errors import ConfigError, DeviceError
from .random_streams import Use, draw_order, make_random_stream
from .sources import (
    ARGUMENTS,
    ArrayDataset,
    Batch,
    check_first_batch,
    require_count,
    require_seed,
)

# Mean and standard deviation of all pixels of the digits, which lie in 0..16.
_DIGITS_MEAN = 4.884
_DIGITS_STD = 6.017


SYNTHETIC_ARGUMENTS: Mapping[str, Argument] = MappingProxyType(
    {"classes": Whole(), "batch": Whole(), "batches": Whole(), "seed": ARGUMENTS["seed"]}
)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Normal noise plus a wave whose frequencies and phase belong to the class: x = n + cos(2π Σ fᵢ xᵢ/sᵢ + φ).

    Attributes:
        shape: of one image, (C, H, W).
        classes: number of classes; labels are drawn uniformly.
        batch: images in a batch.
        batches: batches in an epoch.
        seed: in [0, 2**64).

    Raises:
        ConfigError: a size that is not positive, or a seed out of range.
    """

    shape: tuple[int, ...]
    classes: int
    batch: int
    batches: int
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.shape, (tuple, list)) or not self.shape:
            raise ConfigError("shape", "(C, H, W)", show(self.shape))
        object.__setattr__(self, "shape", tuple(require_count("shape", size) for size in self.shape))
        read_fields(self, SYNTHETIC_ARGUMENTS, "Synthetic")

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self.batches

    @property
    def queue_bytes(self) -> int:
        """Bytes of one batch, which is made when it is asked for, and of what makes its images."""
        image = math.prod(self.shape) * 4
        return self.batch * (image + 8) + 4 * image

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the size of all batches."""
        return (self.batch,)

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Batch]:
        """Return images (batch, C, H, W) float32 and labels (batch,) int64, from `first_batch` on.

        Raises:
            DataError: `first_batch` lies beyond the end of the epoch.
        """
        check_first_batch("Synthetic", number, first_batch, self.batches)
        return (self._make_batch(number, position) for position in range(first_batch, self.batches))

    def _make_batch(self, number: int, position: int) -> Batch:
        rng = np.random.Generator(make_random_stream(self.seed, Use.SYNTHETIC, number, position))
        labels = rng.integers(self.classes, size=self.batch, dtype=np.int64)
        images = rng.standard_normal((self.batch, *self.shape), dtype=np.float32)
        for image, label in zip(images, labels, strict=True):
            image += self._make_template(int(label))
        return images, labels

    def _make_template(self, label: int) -> npt.NDArray[np.float32]:
        rng = np.random.Generator(make_random_stream(self.seed, Use.TEMPLATE, index=label))
        angle = np.full((1,) * len(self.shape), rng.uniform(0, 2 * np.pi), dtype=np.float32)
        for axis, size in enumerate(self.shape):
            turns = np.arange(size, dtype=np.float32) * np.float32(2 * np.pi * rng.integers(4) / size)
            angle = angle + turns.reshape(-1, *(1,) * (len(self.shape) - axis - 1))
        return np.cos(angle)


def digits(
    batch: int, *, seed: int = 0, held_out: float = 0.2, drop_last: bool = False
) -> tuple[ArrayDataset, ArrayDataset]:
    """Return scikit-learn's digits as a shuffled training set and a test set in fixed order.

    Images are (N, 1, 8, 8) float32 of mean 0 and standard deviation 1, labels (N,) int64 in [0, 10).

    Args:
        batch: images in a batch.
        seed: decides the split and the order of each epoch; in [0, 2**64).
        held_out: share of the images in the test set, between 0 and 1.
        drop_last: leave a last short batch of the training set out.

    Raises:
        DeviceError: scikit-learn is missing.
        ConfigError: `held_out` leaves one of the sets empty, or `batch` or `seed` is out of range.
    """
    require_seed(seed)
    held_out = Number().read("digits", "held_out", held_out)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DeviceError(
            "digits", "scikit-learn, which brings the images", str(error), 'Install it: pip install "bathyal[examples]"'
        ) from error
    bunch = load_digits()
    images = ((bunch.images - _DIGITS_MEAN) / _DIGITS_STD).astype(np.float32)[:, None]
    labels = bunch.target.astype(np.int64)
    split = round(len(images) * held_out) if 0 < held_out < 1 else 0
    if not 0 < split < len(images):
        raise ConfigError("held_out", f"a share that leaves both sets some of {len(images)} images", repr(held_out))
    order = draw_order(len(images), seed, Use.SPLIT)
    test, train = order[:split], order[split:]
    return (
        ArrayDataset(images[train], labels[train], batch, seed=seed, drop_last=drop_last),
        ArrayDataset(images[test], labels[test], batch, shuffle=False),
    )
