"""The options of the command line that describe a run's settings, and the settings that they give.

Each stands in one table, by the name of its field in `Settings`; all commands take theirs from there, with defaults of
their own where they have some. Values are checked by `Settings`, which names the field.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..engine.backends.cuda.graphs import MATH
from ..engine.backends.registry import BACKENDS, find_backend
from ..engine.settings import COSTS, Settings
from ..layers.builder import DTYPES
from ..layers.optimizers.sgd import SGD
from ..memory.errors import ConfigError
from ..scheduler.layout.kernels import Kernels
from ..scheduler.strategies.names import list_spellings

DEFAULT_LEARNING_RATE = 0.1
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SettingOption:
    """An option that gives one field of `Settings`.

    Attributes:
        name: of the field.
        words: what it is, for people.
        default: where the option is not given.
        unset: what the default None means, for people.
        how: what argparse is told beside that.
        flag: how it is written; by default `--` and the name.
    """

    name: str
    words: str
    default: Any = None
    unset: str = ""
    how: Mapping[str, Any] = field(default_factory=dict)
    flag: str = ""

    @property
    def spelling(self) -> str:
        """The option as it is written on the command line."""
        return self.flag or "--" + self.name.replace("_", "-")


def list_setting_options() -> tuple[SettingOption, ...]:
    """Return all options that give settings, in the order in which people are told them."""
    text = {"metavar": "SIZE"}
    return (
        SettingOption(
            "memory",
            "the budget: '400 MiB', '1 GB', bytes",
            unset="what is free, less the process's need",
            how=text,
        ),
        SettingOption("strategy", f"one of {', '.join(list_spellings())}", "auto"),
        SettingOption(
            "spill_dir",
            "where tensors may be moved to, on a disk",
            unset="$BATHYAL_SPILL_DIR, $TMPDIR, /var/tmp or /tmp",
            how={"metavar": "FOLDER"},
        ),
        SettingOption("spill_size", "the most bytes there", unset="what the disk has free", how=text),
        SettingOption(
            "link",
            "bytes per second at which tensors can leave memory and come back, as in '600 MB,1.5 GB'",
            unset="measured where a strategy moves tensors",
            how={"metavar": "OUT,IN"},
        ),
        SettingOption(
            "kernels",
            "'fit': the fastest that fits the free bytes; 'fixed': the same for every budget",
            "fit",
            how={"choices": [k.value for k in Kernels]},
        ),
        SettingOption(
            "device", f"what computes: {', '.join(BACKENDS)}; 'null' plans any size", "auto", how={"metavar": "NAME"}
        ),
        SettingOption(
            "math",
            "of a GPU: 'float32'; 'tf32', faster with factors of 10 bits of mantissa; 'bf16', with images in 16 bits",
            "float32",
            how={"choices": MATH},
        ),
        SettingOption(
            "cuda_graphs",
            "launch a GPU's step operation by operation",
            True,
            how={"action": "store_false"},
            flag="--no-cuda-graphs",
        ),
        SettingOption(
            "costs", "measured on this machine, or by arithmetic ('analytic')", "measured", how={"choices": COSTS}
        ),
        SettingOption("dtype", "type of all numbers", "float32", how={"choices": DTYPES}),
        SettingOption("threads", "of the device, where that is the processor", unset="one a core", how={"type": int}),
        SettingOption("seed", "of first values, dropout and shuffling", 0, how={"type": int}),
    )


def add_setting_arguments(
    command: argparse.ArgumentParser,
    *,
    leave_out: Collection[str] = (),
    defaults: Mapping[str, Any] = NOTHING,
    unset: Mapping[str, str] = NOTHING,
) -> None:
    """Add the options that give settings to a command.

    Args:
        command: its parser.
        leave_out: names of those that it does not take; they have their defaults.
        defaults: of this command, by name, where they are others.
        unset: what None means to this command, by name, where it is something else.
    """
    for option in list_setting_options():
        default = defaults.get(option.name, option.default)
        if option.name in leave_out:
            command.set_defaults(**{option.name: default})
            continue
        means = unset.get(option.name, option.unset) if default is None else "%(default)s"
        words = option.words if isinstance(default, bool) else f"{option.words} (default: {means})"
        command.add_argument(option.spelling, dest=option.name, default=default, help=words, **option.how)


def write_setting_arguments(options: argparse.Namespace) -> list[str]:
    """Return the words that give the same settings on a command line."""
    words = []
    for option in list_setting_options():
        value = getattr(options, option.name)
        if isinstance(option.default, bool):
            words += [option.spelling] if value is not option.default else []
        elif value is not None:
            words.append(f"{option.spelling}={value}")
    return words


def add_optimizer_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options that give the optimizer."""
    command.add_argument("--lr", type=float, default=None, help=f"learning rate (default: {DEFAULT_LEARNING_RATE})")
    command.add_argument("--momentum", type=float, default=0.9, help="(default: 0.9)")
    command.add_argument("--weight-decay", type=float, default=0.0, help="(default: 0)")
    command.add_argument("--nesterov", action="store_true", help="Nesterov's momentum")


def read_optimizer(options: argparse.Namespace) -> SGD:
    """Return the optimizer that the options give.

    Raises:
        ConfigError: a number that makes no sense.
    """
    rate = DEFAULT_LEARNING_RATE if options.lr is None else options.lr
    return SGD(rate, momentum=options.momentum, weight_decay=options.weight_decay, nesterov=options.nesterov)


def read_settings(options: argparse.Namespace, input_shape: Sequence[int]) -> Settings:
    """Return the settings that the options give for batches of a shape (N, C, H, W).

    Raises:
        ShapeError: a shape that is none.
        ConfigError: a choice that makes no sense.
    """
    chosen: dict[str, Any] = {option.name: getattr(options, option.name) for option in list_setting_options()}
    return Settings(input_shape=input_shape, optimizer=read_optimizer(options), **chosen)


def require_computing(options: argparse.Namespace) -> None:
    """Refuse a device that computes nothing.

    Raises:
        ConfigError: it serves planning alone, or there is no such device.
    """
    if not find_backend(options.device).computes:
        hint = "It serves `bathyal plan` alone."
        raise ConfigError("--device", "one that computes", repr(options.device), hint)
