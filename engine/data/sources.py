"""Where batches come from: the `Source` protocol, arrays in memory, and any iterable of pairs.

Decides which samples make up which batch, from a seed, the number of the epoch and the position in it, never from what
was drawn before: a run that resumes at batch k of epoch e gets the batches that the uninterrupted run would have got.

Does not check the values in a batch (`checks.py` does, at the border of the trainer), nor that a user's own iterable
repeats itself: resuming such a run is only as exact as the iterable is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from ...memory.arguments import LARGEST_WHOLE, Argument, Switch, Whole, read_fields
from ...memory.errors import DataError
from .random_streams import Use, draw_order

LARGEST_SEED = 2**64 - 1
Batch: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Images (N, C, H, W) and labels (N,)."""


@runtime_checkable
class Source(Protocol):
    """Batches of images (N, C, H, W) and integer labels (N,), epoch after epoch.

    A source that knows ahead how many samples its batches have says it as a `SizedSource` does.
    """

    @property
    def batches_per_epoch(self) -> int | None:
        """The number of batches in an epoch; None where it is not known ahead."""
        ...

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Batch]:
        """Return the batches of epoch `number` from `first_batch` on; the same number gives the same batches."""
        ...


@runtime_checkable
class CountsItsBytes(Protocol):
    """A source that says how much memory its batches take; ours do, and a user's may."""

    @property
    def queue_bytes(self) -> int:
        """Bytes of all batches, and of what makes them, that are in memory at once while a step runs."""
        ...


def count_queue_bytes(source: object, batch_bytes: int) -> int:
    """Return how much memory the batches of a source take: what it says, else two batches, one of them in the making.

    Args:
        source: any source or iterable; None where it is not known yet.
        batch_bytes: of one full batch as the network takes it.

    Raises:
        DataError: it says what is no number of bytes.
    """
    if not isinstance(source, CountsItsBytes):
        return 2 * batch_bytes
    said = source.queue_bytes
    if not isinstance(said, (int, np.integer)) or isinstance(said, bool) or said < 0:
        raise DataError("queue_bytes of the data", "a whole number of bytes", repr(said))
    return int(said)


@runtime_checkable
class SizedSource(Protocol):
    """A source that may know the sizes of its batches ahead, so that all shapes are planned before the first step."""

    def batch_sizes(self) -> tuple[int, ...] | None:
        """Return the distinct numbers of samples of an epoch's batches, the largest first.

        They are the same for every epoch. None where they are not known ahead.
        """
        ...


def find_batch_sizes(source: object) -> tuple[int, ...] | None:
    """Return what the data say of the sizes of their batches, the largest first; None where they say nothing."""
    return source.batch_sizes() if isinstance(source, SizedSource) else None


def require_count(where: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int of at least `least`.

    Raises:
        ConfigError: not an int, or out of range.
    """
    return Whole(least, LARGEST_WHOLE if most is None else most).read(where, "", value)


def require_seed(seed: int) -> int:
    """Return `seed`, an int in [0, 2**64).

    Raises:
        ConfigError: anything else.
    """
    return require_count("seed", seed, 0, LARGEST_SEED)


def count_batches(samples: int, batch: int, drop_last: bool, where: str) -> int:
    """Return how many batches `samples` make; a last short one counts unless `drop_last`.

    Raises:
        DataError: not one.
    """
    batches = samples // batch if drop_last else -(-samples // batch)
    if batches == 0:
        hint = "Lower batch, or do without drop_last." if samples else ""
        raise DataError(where, f"at least one batch of {batch}", f"{samples} samples", hint)
    return batches


def list_batch_sizes(samples: int, batch: int, drop_last: bool) -> tuple[int, ...]:
    """Return the distinct sizes of the batches that `samples` make, the largest first: a whole and a short one."""
    whole, rest = (batch,) if samples >= batch else (), samples % batch
    return (*whole, rest) if rest and not drop_last else whole


def check_first_batch(where: str, number: int, first_batch: int, batches: int) -> None:
    """Check a position to resume from: in [0, batches], the end of the epoch included.

    Raises:
        DataError: outside.
    """
    require_count("epoch", number, 0)
    require_count("first_batch", first_batch, 0)
    if first_batch > batches:
        raise DataError(
            where,
            f"first_batch of at most {batches}, the batches in an epoch",
            str(first_batch),
            "The position belongs to other data or to another batch size.",
        )


ARGUMENTS: Mapping[str, Argument] = MappingProxyType(
    {"batch": Whole(), "shuffle": Switch(), "seed": Whole(0, LARGEST_SEED), "drop_last": Switch()}
)
"""What the arguments of sources of a known length may be, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayDataset:
    """Batches from arrays in memory (or memory-mapped), in a new random order each epoch.

    Attributes:
        images: (N, C, H, W).
        labels: (N,), integers.
        batch: samples in a batch.
        shuffle: a new order each epoch; else the order of the arrays, and batches are views.
        seed: in [0, 2**64).
        drop_last: leave a last short batch out.

    Raises:
        DataError: not numpy arrays, lengths that differ, or too few samples for one batch.
        ConfigError: `batch` or `seed` out of range.
    """

    images: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    batch: int
    _: KW_ONLY
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        read_fields(self, ARGUMENTS, "ArrayDataset")
        _check_array("images", self.images)
        _check_array("labels", self.labels)
        if len(self.images) != len(self.labels):
            raise DataError("ArrayDataset", f"a label for each of {len(self.images)} images", f"{len(self.labels)}")
        count_batches(len(self.images), self.batch, self.drop_last, "ArrayDataset")

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return count_batches(len(self.images), self.batch, self.drop_last, "ArrayDataset")

    @property
    def queue_bytes(self) -> int:
        """Bytes of a batch as it lies in the arrays and as float64, at most; the arrays themselves are there before."""
        row = self.images[:1]
        return self.batch * (row.nbytes + (0 if row.dtype == np.float32 else row.size * 8) + 16)

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the distinct sizes of an epoch's batches, the largest first."""
        return list_batch_sizes(len(self.images), self.batch, self.drop_last)

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Batch]:
        """Return the batches of epoch `number` from `first_batch` on.

        Raises:
            DataError: `first_batch` lies beyond the end of the epoch.
        """
        check_first_batch("ArrayDataset", number, first_batch, self.batches_per_epoch)
        return self._draw_batches(number, first_batch)

    def _draw_batches(self, number: int, first_batch: int) -> Iterator[Batch]:
        order = draw_order(len(self.images), self.seed, Use.SHUFFLE, number) if self.shuffle else None
        for position in range(first_batch, self.batches_per_epoch):
            part = slice(position * self.batch, (position + 1) * self.batch)
            chosen = part if order is None else order[part]
            yield self.images[chosen], self.labels[chosen]


class FromIterable:
    """Batches from the user's own iterable of (images, labels) pairs, taken as they are.

    A list, a loader or a callable that returns a fresh iterable serves any number of epochs; a generator serves one.
    Batches before `first_batch` are drawn and thrown away: nothing else can be known about them.

    Args:
        pairs: an iterable of pairs, or a callable without arguments that returns one for each epoch.

    Raises:
        DataError: neither an iterable nor a callable.
    """

    __slots__ = ("_pairs", "_started")

    def __init__(self, pairs: Iterable[Batch] | Callable[[], Iterable[Batch]]) -> None:
        if not isinstance(pairs, Iterable) and not callable(pairs):
            raise DataError(
                "data", "an iterable of (images, labels) pairs, or a callable that returns one", _name_kind(pairs)
            )
        self._pairs = pairs
        self._started = False

    @property
    def batches_per_epoch(self) -> int | None:
        """The length of the iterable; None where it has none, or is made by a callable."""
        return len(self._pairs) if isinstance(self._pairs, Sized) else None

    def batch_sizes(self) -> tuple[int, ...] | None:
        """Return the distinct sizes of the pairs of a list or tuple, the largest first; else None, as none are drawn.

        None too where a pair is none: the epoch that meets it says so.
        """
        if not isinstance(self._pairs, (list, tuple)):
            return None
        found = {_count_samples(pair) for pair in self._pairs}
        return tuple(sorted((n for n in found if n is not None), reverse=True)) if found and None not in found else None

    def epoch(self, number: int, first_batch: int = 0) -> Generator[Batch, None, None]:
        """Return the pairs from `first_batch` on.

        Raises:
            DataError: a generator is asked for a second epoch; while iterating: no pair, not a pair, or an end before
                `first_batch`.
        """
        require_count("epoch", number, 0)
        require_count("first_batch", first_batch, 0)
        pairs = self._pairs if isinstance(self._pairs, Iterable) else self._pairs()
        if not isinstance(pairs, Iterable):
            raise DataError("data", "a callable that returns an iterable of (images, labels) pairs", _name_kind(pairs))
        if isinstance(pairs, Iterator) and isinstance(self._pairs, Iterable):
            if self._started:
                raise DataError(
                    f"data, epoch {number}",
                    "an iterable that can be read again",
                    f"a {type(pairs).__name__}, which an earlier epoch has used up",
                    "Pass a list of batches, or a callable that returns a fresh iterator for each epoch.",
                )
            self._started = True
        return _draw_pairs(pairs, number, first_batch)


def _draw_pairs(pairs: Iterable[object], number: int, first_batch: int) -> Generator[Batch, None, None]:
    position = -1
    for position, pair in enumerate(pairs):
        if position >= first_batch:
            yield _as_pair(pair, number, position)
    count = position + 1
    if count == 0:
        hint = "A callable must return a fresh iterator at every call."
        if isinstance(pairs, Iterator):
            hint = "An iterator serves one epoch; it may have been used up by an earlier loop or call of fit. " + hint
        raise DataError(f"data, epoch {number}", "at least one batch", "an iterable without any", hint)
    if count < first_batch:
        raise DataError(
            f"data, epoch {number}",
            f"at least {first_batch} batches, to resume after them",
            f"{count}",
            "The position belongs to other data or to another batch size.",
        )


def _count_samples(pair: object) -> int | None:
    """Return how many samples a pair (images, labels) has; None where it is none."""
    images = pair[0] if isinstance(pair, (tuple, list)) and len(pair) == 2 else None
    return len(images) if isinstance(images, np.ndarray) and images.ndim else None


def _as_pair(pair: object, number: int, position: int) -> Batch:
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        return pair[0], pair[1]
    shown = f"{len(pair)} values" if isinstance(pair, (tuple, list)) else _name_kind(pair)
    hint = (
        "Give an iterable of pairs, or ArrayDataset(images, labels, batch) for two arrays."
        if isinstance(pair, np.ndarray)
        else ""
    )
    raise DataError(f"data, epoch {number}, batch {position}", "a pair (images, labels)", shown, hint)


def _check_array(where: str, array: object) -> None:
    if not isinstance(array, np.ndarray):
        raise DataError(where, "a numpy array", _name_kind(array), "Convert it once with numpy.asarray.")
    if isinstance(array, np.ma.MaskedArray):
        raise DataError(where, "a numpy array without a mask", "a masked array", "Fill the gaps: array.filled(value).")
    if array.ndim == 0:
        raise DataError(where, "an array whose first axis counts the samples", "a single value")


def _name_kind(value: object) -> str:
    return f"a {type(value).__name__}"
