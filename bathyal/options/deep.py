"""The options of the commands on very deep networks, and the options of training that they stand for.

The networks are the family (n1, n2, n3, n4) of the SuperNeurons paper, as the paper has them, on random images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..layers.builder import Layer
from ..memory.errors import ConfigError
from ..models.registry import build_model
from .arguments import add_json_argument
from .limit import add_limit_argument
from .settings import add_optimizer_arguments, add_setting_arguments
from .training import add_training_arguments

LEARNING_RATE = 0.01
CLASSES = 1000
VARIANT = "paper"


def add_deep_arguments(command: argparse.ArgumentParser, *, batch: int, memory: str | None, limit: str | None) -> None:
    """Add what both commands on deep networks take.

    Args:
        command: its parser.
        batch: images a step, by default.
        memory: the arena, by default; None is what the limit leaves.
        limit: of the whole process, by default; None is no limit.
    """
    command.add_argument("--batch", type=int, default=batch, help="images a step (default: %(default)s)")
    command.add_argument("--image", type=int, default=227, help="side of the images in pixels (default: %(default)s)")
    add_limit_argument(command, limit, "none")
    defaults = {"memory": memory, "strategy": "stream", "kernels": "fixed"}
    add_setting_arguments(command, defaults=defaults, unset={"memory": "what --limit leaves"})
    add_json_argument(command)


def make_training_options(options: argparse.Namespace, blocks: Sequence[int]) -> argparse.Namespace:
    """Return the options with which `bathyal train` trains the network of these blocks.

    Raises:
        ConfigError: a number that makes no sense.
    """
    usual = argparse.ArgumentParser()
    add_optimizer_arguments(usual)
    add_training_arguments(usual)
    chosen = {"model": name_network(blocks), "variant": VARIANT, "classes": CLASSES, "lr": LEARNING_RATE}
    return argparse.Namespace(**{**vars(usual.parse_args([])), **vars(options), **chosen})


def name_network(blocks: Sequence[int]) -> str:
    """Return the name under which the network of these blocks is built.

    Raises:
        ConfigError: there is no such network.
    """
    if min(blocks) < 1:
        raise ConfigError("--n", "four positive whole numbers of blocks", " ".join(map(str, blocks)))
    return "resnet:" + ",".join(map(str, blocks))


def build_network(blocks: Sequence[int]) -> Layer:
    """Build the network of these blocks.

    Raises:
        ConfigError: there is no such network.
    """
    return build_model(name_network(blocks), CLASSES, VARIANT)
