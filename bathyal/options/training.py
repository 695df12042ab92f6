"""The options of training beside those that give the network and its settings."""

from __future__ import annotations

import argparse

from ..memory.errors import ConfigError
from .arguments import parse_file_name, parse_folder, parse_name
from .settings import require_computing


def add_training_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options that say what is trained on, how long, and what is saved."""
    command.add_argument(
        "--data",
        default="synthetic",
        type=parse_name,
        metavar="DIR|digits|synthetic",
        help="a folder of images, one sub-folder a class, or one with train/ and val/ in it; scikit-learn's digits; "
        "or random images (default: synthetic)",
    )
    command.add_argument("--steps", type=int, default=None, help="stop after this many steps in all")
    command.add_argument("--epochs", type=int, default=None, help="stop after this many epochs in all (default: 1)")
    command.add_argument(
        "--schedule",
        choices=["constant", "cosine"],
        default="constant",
        help="of the learning rate (default: constant)",
    )
    command.add_argument(
        "--drop-last", action="store_true", help="leave the last batch of an epoch out where it is short"
    )
    command.add_argument("--augment", action="store_true", help="crop and flip images at random (folders of images)")
    command.add_argument(
        "--checkpoint", type=parse_folder, default=None, metavar="DIR", help="keep checkpoints in this folder"
    )
    command.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS", help="(default: 100)")
    command.add_argument(
        "--plan",
        type=parse_file_name,
        default=None,
        metavar="FILE",
        help="follow a plan saved by `bathyal plan --save-plan`",
    )
    command.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --checkpoint")


def check_training_options(options: argparse.Namespace) -> None:
    """Refuse options that make no sense, before data are read.

    Raises:
        ConfigError: names the option.
    """
    for name in ("steps", "epochs", "checkpoint_every"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError("--" + name.replace("_", "-"), "a whole number of at least 1", str(value))
    if options.resume and options.checkpoint is None:
        raise ConfigError("--resume", "a folder given with --checkpoint", "none")
    require_computing(options)
