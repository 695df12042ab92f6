"""From the options that name a network to the network and its settings."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass

from ..engine.settings import Settings
from ..layers.builder import Layer
from ..memory.arguments import LARGEST_SIZE, LARGEST_WHOLE, Whole
from ..models.registry import build_model, find_model
from .arguments import add_json_argument
from .settings import add_optimizer_arguments, add_setting_arguments, read_settings

DEFAULT_BATCH = 8


@dataclass(frozen=True, slots=True)
class NetworkSetup:
    """A network and how it is to be run."""

    network: Layer
    settings: Settings
    classes: int


def add_network_arguments(command: argparse.ArgumentParser, *, leave_out: Collection[str] = ()) -> None:
    """Add the arguments that say which network is planned or trained, and how.

    Args:
        command: its parser.
        leave_out: names of settings that the command does not take.
    """
    command.add_argument("model", help="a bundled network, see `bathyal info`, or resnet:N1,N2,N3,N4")
    command.add_argument("--batch", type=int, default=None, help=f"images per step (default: {DEFAULT_BATCH})")
    command.add_argument("--image", type=int, default=None, help="side of the images in pixels")
    command.add_argument("--classes", type=int, default=None, help="number of classes")
    command.add_argument("--variant", default=None, help="'today' or 'paper', where a network has both")
    add_setting_arguments(command, leave_out=leave_out)
    add_optimizer_arguments(command)
    add_json_argument(command)


def choose_network(
    options: argparse.Namespace,
    *,
    channels: int | None = None,
    image: int | None = None,
    classes: int | None = None,
) -> NetworkSetup:
    """Build what the options name.

    Args:
        options: of the command line.
        channels: of the data, where the data say; else the network's usual.
        image: side of the data's images, where the data say; else the option or the network's usual.
        classes: number of classes, where the data say; else the option or the network's usual.

    Raises:
        ConfigError: an unknown network, or a number that makes no sense.
    """
    entry = find_model(options.model)
    side = options.image if image is None else image
    side = entry.variants.get(options.variant, entry.image_side) if side is None else side
    classes = options.classes if classes is None else classes
    classes = entry.classes if classes is None else classes
    batch = DEFAULT_BATCH if options.batch is None else options.batch
    for name, value in (("--batch", batch), ("--image", side), ("--classes", classes)):
        Whole(1, LARGEST_SIZE if name == "--classes" else LARGEST_WHOLE).read(name, "", value)
    network = build_model(options.model, classes, options.variant)
    settings = read_settings(options, (batch, channels or entry.channels, side, side))
    return NetworkSetup(network, settings, classes)
