"""Images in a folder for each class, decoded by Pillow in threads ahead of the training.

Decides what is a class (a sub-folder, numbered in the order of the names) and an image (a file with one of
`EXTENSIONS`, at any depth, hidden ones left out): torchvision's ImageFolder layout and numbering. The order of an epoch
and the augmentation of each image follow from (seed, epoch, index of the image), not from the threads.

Does not decode anything before it is needed: a damaged file is found in the epoch that meets it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...memory.arguments import Instance, Pair, Switch, Whole, show
from ...memory.errors import ConfigError, DataError, DeviceError
from .decoding import count_decoding_bytes, decode_image
from .prefetch import count_results_alive, run_ahead
from .random_streams import Use, draw_order, make_random_stream
from .sources import (
    Batch,
    check_first_batch,
    count_batches,
    list_batch_sizes,
    require_seed,
)

logger = logging.getLogger(__name__)

EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""What an image's name ends with, in any case."""

SPLITS = ("train", "val", "valid", "validation", "test")
"""Names of folders that hold a part of the data each, with the same classes inside."""
MOST_WORKERS = 2**12
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

MOST_AHEAD = 4
QUEUE_BYTES = 128 * 2**20
"""What the batches that are decoded early take at most, where the user does not say how many; one there always is."""
MEASURED_FILES = 16
"""Of how many files the size in pixels is looked at, to say how much memory decoding takes."""

_EXPECTED_LAYOUT = "a folder with a sub-folder of images for each class (root/cat/1.jpg, root/dog/2.jpg, …)"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image of the data set: where it lies and the number of its class."""

    path: str
    label: int


class ImageFolder:
    """Batches of images (n, 3, H, W) float32, normalized by (x/255 − mean)/std, and labels (n,) int64.

    Args:
        root: the folder that holds a sub-folder for each class.
        size: H = W, or (H, W).
        batch: images in a batch.
        shuffle: a new order each epoch; else by class and name.
        seed: in [0, 2**64).
        workers: threads that decode; each holds one decoded image besides its batch.
        ahead: batches decoded early; None takes as many as 128 MiB hold, from 1 to 4.
        augment: random boxes and mirroring; else a centred box.
        mean: of each channel, for values in 0..1.
        std: likewise.
        drop_last: leave a last short batch out.

    Attributes:
        classes: names of the sub-folders, sorted; a label is a position in it.
        files: every image, in the order of classes and names.

    Raises:
        DeviceError: Pillow is missing.
        DataError: no such folder, no sub-folders, a class without images, too few images for a batch; while iterating:
            a file that cannot be decoded.
        ConfigError: an argument out of range, or a folder of parts of the data, such as train/ and val/.
    """

    __slots__ = ("_augment", "_drop_last", "_mean", "_std", "ahead", "batch", "classes", "files", "root", "seed",
    "shuffle", "size", "workers")  # fmt: skip

    def __init__(
        self,
        root: str | os.PathLike[str],
        size: int | tuple[int, int],
        batch: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        workers: int = 2,
        ahead: int | None = None,
        augment: bool = False,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        drop_last: bool = False,
    ) -> None:
        _require_pillow()
        sides = Pair().read("ImageFolder", "size", size)
        Instance((str, os.PathLike), "'images/train'").read("ImageFolder", "root", root)
        self.root = Path(root)
        self.size = (sides, sides) if isinstance(sides, int) else sides
        self.batch = Whole().read("ImageFolder", "batch", batch)
        self.shuffle = Switch().read("ImageFolder", "shuffle", shuffle)
        self.seed = require_seed(seed)
        self.workers = Whole(1, MOST_WORKERS).read("ImageFolder", "workers", workers)
        fitting = min(max(QUEUE_BYTES // self.batch_bytes, 1), MOST_AHEAD)
        self.ahead = fitting if ahead is None else Whole(1, MOST_WORKERS).read("ImageFolder", "ahead", ahead)
        self._augment = Switch().read("ImageFolder", "augment", augment)
        self._mean = _parse_per_channel("mean", mean)
        self._std = _parse_per_channel("std", std)
        if not (self._std > 0).all():
            raise ConfigError("std", "three positive numbers", repr(std))
        self._drop_last = Switch().read("ImageFolder", "drop_last", drop_last)
        self.classes = find_classes(self.root)
        self.files = find_images(self.root, self.classes)
        count_batches(len(self.files), self.batch, drop_last, str(self.root))

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return count_batches(len(self.files), self.batch, self._drop_last, str(self.root))

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the distinct sizes of an epoch's batches, the largest first."""
        return list_batch_sizes(len(self.files), self.batch, self._drop_last)

    @property
    def batch_bytes(self) -> int:
        """Bytes of one whole batch, images and labels."""
        height, width = self.size
        return self.batch * (3 * height * width * 4 + 8)

    @property
    def queue_bytes(self) -> int:
        """Bytes of all batches that can be in memory at once, `ahead` and the one handed over, and of decoding.

        What an image takes while it is decoded follows from the largest of `MEASURED_FILES` files spread over all.
        """
        chosen = self.files[:: max(len(self.files) // MEASURED_FILES, 1)]
        decoding = max(count_decoding_bytes(file.path) for file in chosen)
        return count_results_alive(self.ahead) * self.batch_bytes + self.workers * decoding

    def epoch(self, number: int, first_batch: int = 0) -> Generator[Batch, None, None]:
        """Return the batches of epoch `number` from `first_batch` on; earlier ones are not read.

        The threads start with the first batch drawn, and end with the iteration, however it ends.

        Raises:
            DataError: `first_batch` lies beyond the end of the epoch; while iterating, a file that cannot be decoded.
        """
        check_first_batch(str(self.root), number, first_batch, self.batches_per_epoch)
        return self._draw_batches(number, first_batch)

    def _draw_batches(self, number: int, first_batch: int) -> Generator[Batch, None, None]:
        count = len(self.files)
        order = draw_order(count, self.seed, Use.SHUFFLE, number) if self.shuffle else np.arange(count)

        def decode(position: int) -> Batch:
            return self._decode_batch(order[position * self.batch : (position + 1) * self.batch], number)

        yield from run_ahead(decode, range(first_batch, self.batches_per_epoch), self.workers, self.ahead)

    def _decode_batch(self, indices: npt.NDArray[np.int64], number: int) -> Batch:
        images = np.empty((len(indices), 3, *self.size), dtype=np.float32)
        labels = np.empty(len(indices), dtype=np.int64)
        for row, index in enumerate(indices):
            file = self.files[index]
            rng = (
                np.random.Generator(make_random_stream(self.seed, Use.AUGMENT, number, int(index)))
                if self._augment
                else None
            )
            pixels = decode_image(file.path, self.size, rng).transpose(2, 0, 1)
            np.divide(pixels, np.float32(255), out=images[row])
            images[row] -= self._mean
            images[row] /= self._std
            labels[row] = file.label
        return images, labels


def find_classes(root: Path) -> tuple[str, ...]:
    """Return the names of the sub-folders of `root`, sorted; hidden ones are left out.

    Raises:
        DataError: no such folder, or no sub-folder.
        ConfigError: the sub-folders are parts of the data, such as train/ and val/, which hold the classes.
    """
    entries = _list_folder(root)
    names = tuple(sorted(entry.name for entry in entries if entry.is_dir()))
    if not names:
        images = sum(entry.name.lower().endswith(EXTENSIONS) for entry in entries)
        found = f"{images} images but no sub-folder" if images else f"{len(entries)} files and no sub-folder"
        hint = "Put the images of each class into a sub-folder of their own." if images else ""
        raise DataError(str(root), _EXPECTED_LAYOUT, found if entries else "an empty folder", hint)
    if all(name.lower() in SPLITS and _holds_folders(root / name) for name in names):
        hint = f"These are parts of the data, not classes: give {root / names[0]}, or another of them."
        raise ConfigError(str(root), _EXPECTED_LAYOUT, f"folders of classes in {', '.join(names)}", hint)
    return names


def _holds_folders(folder: Path) -> bool:
    return any(entry.is_dir() for entry in _list_folder(folder))


def find_images(root: Path, classes: tuple[str, ...]) -> tuple[ImageFile, ...]:
    """Return every image below the sub-folders `classes`, by class and path.

    Raises:
        DataError: a class without images, or a folder that cannot be read.
    """
    found: list[ImageFile] = []
    for label, name in enumerate(classes):
        folder = root / name
        paths = sorted(_walk_folder(folder, frozenset()))
        if not paths:
            inside = len(_list_folder(folder))
            hint = "Remove the folder, or fill it."
            raise DataError(str(folder), f"images ({', '.join(EXTENSIONS)})", f"none among {inside} entries", hint)
        found.extend(ImageFile(path, label) for path in paths)
    return tuple(found)


def _list_folder(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(str(folder), _EXPECTED_LAYOUT, error.strerror or str(error)) from error


def _walk_folder(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    """Yield the images below `folder`; links are followed, but not back to a folder that contains them."""
    found = folder.stat()
    identity = (found.st_dev, found.st_ino)
    if identity in above:
        logger.warning("%s links back to a folder above it and is left out", folder)
        return
    for entry in _list_folder(folder):
        if entry.is_dir():
            yield from _walk_folder(Path(entry.path), above | {identity})
        # A broken link is kept, so that it is named when it is met; pipes and devices are not.
        elif entry.name.lower().endswith(EXTENSIONS) and (entry.is_file() or entry.is_symlink()):
            yield entry.path


def _parse_per_channel(where: str, values: tuple[float, float, float]) -> npt.NDArray[np.float32]:
    try:
        array = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0, np.float32)
    if array.shape != (3,) or not np.isfinite(array).all():
        raise ConfigError(where, "three finite numbers, for red, green and blue", show(values))
    return array[:, None, None]


def _require_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise DeviceError(
            "ImageFolder", "Pillow, which decodes images", str(error), 'Install it: pip install "bathyal[examples]"'
        ) from error
