"""From the options that name a network to the network and its settings."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ..engine.settings import Settings
from ..layers.builder import Layer
from ..layers.optimizers.sgd import SGD
from ..memory.errors import ConfigError
from ..models.registry import build_model, find_model

DEFAULT_BATCH = 8
DEFAULT_LEARNING_RATE = 0.1


@dataclass(frozen=True, slots=True)
class NetworkChoice:
    """A network and how it is to be run."""

    network: Layer
    settings: Settings
    classes: int


def choose(options: argparse.Namespace, channels: int | None = None, image: int | None = None) -> NetworkChoice:
    """Build what the options name.

    Args:
        options: of the command line.
        channels: of the data, where the data say; else the network's usual.
        image: side of the data's images, where the data say; else the option or the network's usual.

    Raises:
        ConfigError: an unknown network, or a number that makes no sense.
    """
    entry = find_model(options.model)
    side = options.image if image is None else image
    side = entry.variants.get(options.variant, entry.image_side) if side is None else side
    classes = entry.classes if options.classes is None else options.classes
    batch = DEFAULT_BATCH if options.batch is None else options.batch
    for name, value in (("--batch", batch), ("--image", side), ("--classes", classes)):
        if value < 1:
            raise ConfigError(name, "a whole number of at least 1", str(value))
    network = build_model(options.model, classes, options.variant)
    rate = DEFAULT_LEARNING_RATE if options.lr is None else options.lr
    settings = Settings(
        (batch, channels or entry.channels, side, side),
        SGD(rate, options.momentum, options.weight_decay, options.nesterov),
        options.memory,
        options.strategy,
        options.kernels,
        options.device,
        options.dtype,
        options.seed,
        options.threads,
        options.costs,
        options.link,
        options.spill_dir,
        options.spill_size,
        options.math,
        options.cuda_graphs,
    )
    return NetworkChoice(network, settings, classes)
