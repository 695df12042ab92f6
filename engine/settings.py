"""What a user may choose for a run: every choice is read once, when the settings are made, and stored as a value.

A choice that makes no sense is refused here, by name, before memory is taken or a library loaded. Does not check what
only the machine can tell: whether so many bytes are free, whether a folder can be written, whether a GPU is there.
"""

from __future__ import annotations

import difflib
import logging
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ..layers.builder import DTYPES
from ..layers.kinds import KINDS
from ..layers.losses.cross_entropy import CrossEntropy
from ..layers.losses.loss import Loss, require_loss
from ..layers.optimizers.optimizer import Optimizer, require_optimizer
from ..layers.optimizers.sgd import SGD
from ..memory.arguments import LARGEST_WHOLE, Switch, is_whole, show
from ..memory.errors import ConfigError, ShapeError, one_of
from ..memory.process.cores import count_default_threads, count_usable_cores
from ..memory.sizes import parse_size
from ..scheduler.layout.kernels import Kernels
from ..scheduler.plan.link import Link, parse_link
from ..scheduler.strategies import LinkUse, StrategyName, find_link_use, parse_strategy
from .backends.backend import Backend
from .backends.cuda.graphs import MATH
from .backends.registry import AUTO, BackendOptions, find_backend, make_backend
from .data.sources import require_count

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

COSTS = ("measured", "analytic")
LARGEST_BATCH = 2**41
"""Values in a batch: 16 TiB of float64."""
MOST_THREADS_PER_CORE = 8
"""Threads beyond one a core only wait: 16 on 2 cores take 45 times as long, and thousands never end a step."""
LARGEST_SEED = 2**63 - 1


class Choices(TypedDict, total=False):
    """Keyword arguments of `Settings` and of `Trainer`: what each choice may be given as."""

    optimizer: Optimizer | None
    loss: Loss | None
    memory: int | str | None
    strategy: str | StrategyName
    kernels: str
    device: str
    dtype: str
    seed: int
    threads: int | None
    costs: str
    link: str | Link | None
    spill_dir: str | os.PathLike[str] | None
    spill_size: int | str | None
    math: str
    cuda_graphs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Choices of a run, read and checked.

    Each may be given as `Choices` says, and is stored as the type of its attribute. One that is stored may be given
    again, so that `dataclasses.replace` changes some and keeps the others.

    Attributes:
        input_shape: (N, C, H, W) of a full batch.
        optimizer: what updates the parameters, any object with the members of `Optimizer`; plain SGD where None is
            given.
        loss: what training makes small, any object with the members of `Loss`; cross-entropy where None is given.
        memory: the budget in bytes, given as a number or as text such as "400 MiB"; None takes what is free and
            not needed outside the arena.
        strategy: what plans, given by its name.
        kernels: "fit" takes the fastest that fits the free bytes, "fixed" the library's first, whatever the budget.
        device: name of what computes; "auto" in float32 is a GPU where there is one, then oneDNN, else numpy.
        dtype: "float32" or "float64".
        seed: of first values, dropout and shuffling.
        threads: of the backend, at most `MOST_THREADS_PER_CORE` times the cores that this process may use; None takes
            those cores, or fewer by `OMP_NUM_THREADS`.
        costs: "measured" times each kernel once, "analytic" estimates by arithmetic.
        link: rates to and from the memory outside, given as `parse_link` reads them; None measures those of the spill
            folder where tensors may be moved.
        spill_dir: absolute path of the folder, on a disk, for the tensors that are moved out; None takes
            `default_spill_folder`.
        spill_size: the most bytes that are moved out at a time; None takes what the disk has free, or half of the
            host's memory that is free, where a GPU moves them there.
        math: how a GPU multiplies: "float32"; "tf32", with factors rounded to 10 bits of mantissa; "bf16", with images
            in 16 bits, weights and statistics in 32.
        cuda_graphs: whether a GPU's step is captured into a graph and launched as one.

    Raises:
        ShapeError: an input shape that is none.
        ConfigError: any other choice that makes no sense.
    """

    input_shape: tuple[int, ...]
    optimizer: Optimizer = SGD()
    loss: Loss = CrossEntropy()
    memory: int | None = None
    strategy: StrategyName = StrategyName("auto")
    kernels: Kernels = Kernels.FIT
    device: str = AUTO
    dtype: str = "float32"
    seed: int = 0
    threads: int | None = None
    costs: str = "measured"
    link: Link | None = None
    spill_dir: Path | None = None
    spill_size: int | None = None
    math: str = "float32"
    cuda_graphs: bool = True

    if TYPE_CHECKING:

        def __init__(self, *, input_shape: Sequence[int], **choices: Unpack[Choices]) -> None: ...

    def __post_init__(self) -> None:
        read = {
            "input_shape": parse_shape(self.input_shape),
            "optimizer": _check_optimizer(self.optimizer),
            "loss": _check_loss(self.loss),
            "memory": None if self.memory is None else parse_size(self.memory),
            "strategy": parse_strategy(self.strategy),
            "kernels": Kernels(one_of("kernels", self.kernels, [k.value for k in Kernels])),
            "device": self.device,
            "dtype": one_of("dtype", self.dtype, DTYPES),
            "seed": require_count("seed", self.seed, 0, LARGEST_SEED),
            "threads": None if self.threads is None else _parse_threads(self.threads),
            "costs": one_of("costs", self.costs, COSTS),
            "link": self.link if self.link is None or isinstance(self.link, Link) else parse_link(self.link),
            "spill_dir": None if self.spill_dir is None else _parse_folder("spill_dir", self.spill_dir),
            "spill_size": None if self.spill_size is None else parse_size(self.spill_size, "spill_size"),
            "math": _parse_math(self.math, self.device),
            "cuda_graphs": Switch().read("cuda_graphs", "", self.cuda_graphs),
        }
        for name, value in read.items():
            object.__setattr__(self, name, value)

    @property
    def computes(self) -> bool:
        """Whether the device computes anything; the one that does not serves planning alone."""
        return find_backend(self.device).computes

    @property
    def measures_costs(self) -> bool:
        """Whether planning times kernels, for which it needs memory."""
        return self.costs == "measured" and self.computes

    @property
    def may_spill(self) -> bool:
        """Whether tensors may be moved out: the strategy must, or it may, as `auto`, and was told where or how fast."""
        use = find_link_use(self.strategy)
        told = any(given is not None for given in (self.link, self.spill_dir, self.spill_size))
        return use is LinkUse.REQUIRED or (use is LinkUse.OPTIONAL and told)

    def make_backend(self) -> Backend:
        """Make the backend of `device`.

        Raises:
            DeviceError: its library is missing, but for "auto".
        """
        return make_backend(self.device, BackendOptions(self.dtype, self.math, self.cuda_graphs))

    def count_threads(self) -> int:
        """Return the number of threads of the backend: those asked for, else one for each usable core.

        More than the cores are taken, since results to the bit depend on the number, with a warning.
        """
        if self.threads is None:
            return count_default_threads()
        cores = count_usable_cores()
        if self.threads > cores and find_backend(self.device).computes:
            logger.warning(
                "threads: %d on the %d core%s that this process may use: steps may take many times as long. "
                "Give at most %d.",
                self.threads,
                cores,
                "" if cores == 1 else "s",
                cores,
            )
        return self.threads


def parse_shape(value: object) -> tuple[int, ...]:
    """Return a shape as a tuple of ints.

    Raises:
        ShapeError: not whole numbers of at least 1, or a batch beyond 16 TiB, whose sizes no arithmetic here could
            hold.
    """
    sizes = tuple(value) if isinstance(value, Iterable) else ()
    if not all(is_whole(n, 1, LARGEST_WHOLE) for n in sizes) or len(sizes) < 2:
        raise ShapeError("input_shape", "positive whole numbers (N, C, H, W) or (N, F)", show(value))
    shape = tuple(int(n) for n in sizes)
    if math.prod(shape) > LARGEST_BATCH:
        raise ShapeError(
            "input_shape", f"at most {LARGEST_BATCH} values in a batch", f"{shape}", "Give a smaller batch."
        )
    return shape


def parse_path(where: str, value: object, expected: str) -> Path:
    """Return the name of a file or folder as a path.

    Raises:
        ConfigError: it is no name, or an empty one.
    """
    name = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(where, expected, repr(value))
    return Path(name)


def _parse_folder(where: str, value: object) -> Path:
    # Absolute, because the program may change its working folder before tensors are moved.
    return parse_path(where, value, "the name of a folder on a disk").absolute()


def _check_optimizer(value: Optimizer | None) -> Optimizer:
    if value is None:
        return SGD()
    require_optimizer(value, KINDS)
    return value


def _check_loss(value: Loss | None) -> Loss:
    if value is None:
        return CrossEntropy()
    require_loss(value, KINDS)
    return value


def _parse_threads(value: int) -> int:
    cores = count_usable_cores()
    try:
        return require_count("threads", value, 1, MOST_THREADS_PER_CORE * cores)
    except ConfigError as error:
        hint = f"This process may use {cores} cores: more threads than that only wait for each other."
        raise ConfigError(error.where, error.expected, error.actual, hint) from None


def _parse_math(value: str, device: str) -> str:
    entry = find_backend(device)
    one_of("math", value, MATH)
    if value not in entry.math:
        allowed = " or ".join(map(repr, entry.math))
        raise ConfigError("math", f"{allowed} on the device {device!r}", repr(value))
    return value


def require_known(function: str, choices: Mapping[str, object]) -> None:
    """Refuse arguments that are no choice of a run.

    Raises:
        TypeError: as for any function that has no such argument; names the nearest.
    """
    for name in choices:
        if name not in Choices.__annotations__:
            near = difflib.get_close_matches(name, Choices.__annotations__, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function} has no argument {name!r}.{hint}")


def take_earlier_name(backend: str, device: str | None) -> str:
    """Return the device that `Trainer(backend=...)` names, and warn that the argument has been renamed.

    Raises:
        ConfigError: both are given and differ.
    """
    warnings.warn("Trainer(backend=...) is now Trainer(device=...)", DeprecationWarning, stacklevel=3)
    if device is not None and device != backend:
        raise ConfigError("backend", f"what device= says, {device!r}", repr(backend), "Leave backend= out.")
    return backend
