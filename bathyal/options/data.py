"""From the options that name the data to the data, and to a network that fits them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from ..engine.data.image_folder import SPLITS, ImageFolder
from ..engine.data.sources import Source
from ..engine.data.synthetic import Synthetic, digits
from ..memory.errors import ConfigError, DataError
from .network import DEFAULT_BATCH, NetworkSetup, choose_network

SYNTHETIC_BATCHES = 16
DIGITS_SIDE = 8
DIGITS_CLASSES = 10


@dataclass(frozen=True, slots=True)
class Data:
    """What is trained on and, where there is some, what is held out."""

    train: Source
    held_out: Source | None
    setup: NetworkSetup


def load_data(options: argparse.Namespace) -> Data:
    """Open the data and build a network that fits them.

    Raises:
        ConfigError: an option that does not fit these data.
        DataError: the folder holds no images, or train and held-out images are not of the same classes.
        DeviceError: a package is missing.
    """
    batch = DEFAULT_BATCH if options.batch is None else options.batch
    if options.augment and options.data in ("digits", "synthetic"):
        raise ConfigError("--augment", "a folder of images given with --data", repr(options.data))
    if options.data == "digits":
        if options.image not in (None, DIGITS_SIDE):
            raise ConfigError("--image", f"{DIGITS_SIDE}, the side of the digits", str(options.image))
        train, held_out = digits(batch, seed=options.seed, drop_last=options.drop_last)
        classes = _count_classes(options, DIGITS_CLASSES)
        return Data(train, held_out, choose_network(options, channels=1, image=DIGITS_SIDE, classes=classes))
    if options.data == "synthetic":
        setup = choose_network(options)
        shape = setup.settings.input_shape[1:]
        return Data(Synthetic(shape, setup.classes, batch, SYNTHETIC_BATCHES, seed=options.seed), None, setup)
    return _load_folder(options, batch)


def _load_folder(options: argparse.Namespace, batch: int) -> Data:
    root = Path(options.data)
    split = next((root / name for name in SPLITS[1:] if (root / name).is_dir()), None)
    split = split if (root / "train").is_dir() else None
    size = choose_network(options).settings.input_shape[2]
    how = {"seed": options.seed, "augment": options.augment, "drop_last": options.drop_last}
    train = ImageFolder(root / "train" if split else root, size, batch, **how)
    if len(train.classes) < 2:
        hint = "Give the folder whose sub-folders are the classes, or one with both train/ and val/ in it."
        raise DataError(str(train.root), "at least two classes", f"one sub-folder, {train.classes[0]!r}", hint)
    held_out = ImageFolder(split, size, batch, shuffle=False) if split else None
    if held_out is not None and held_out.classes != train.classes:
        # A class is a position in the sorted names: one more or less would shift all that follow.
        differing = sorted({*train.classes} ^ {*held_out.classes})
        raise DataError(
            str(held_out.root),
            f"the {len(train.classes)} classes of {train.root}",
            f"{len(held_out.classes)}; {differing[0]!r} is in one of them alone",
        )
    classes = _count_classes(options, len(train.classes))
    return Data(train, held_out, choose_network(options, channels=3, image=size, classes=classes))


def _count_classes(options: argparse.Namespace, found: int) -> int:
    """Return the number of classes of the network: what the user gives, else what the data have.

    Raises:
        ConfigError: the data have more than the user gives.
    """
    if options.classes is None:
        return found
    given = int(options.classes)
    if 0 < given < found:
        raise ConfigError("--classes", f"at least {found}, as the data have", str(given))
    return given
