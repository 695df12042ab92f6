"""What a user may choose for a run, checked at once."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..layers.builder import DTYPES
from ..layers.optimizer import SGD
from ..memory.errors import ConfigError, DeviceError, ShapeError, one_of
from ..memory.sizes import parse_size
from ..scheduler.layout.kernels import Kernels
from ..scheduler.plan.link import parse_link
from ..scheduler.strategies.names import find_link_use, parse_strategy
from ..scheduler.strategies.strategy import LinkUse
from .backends.backend import Backend
from .backends.cuda.gpu_library import cuda_backend
from .backends.cuda.graphs import MATH
from .backends.null import NullBackend
from .backends.onednn import OneDnnBackend
from .backends.reference import ReferenceBackend

logger = logging.getLogger(__name__)

Maker = Callable[[str, bool], Backend]
"""Makes a backend from the choices `math` and `cuda_graphs`; those of the host have one way to do either."""

BACKENDS: Mapping[str, Maker] = MappingProxyType(
    {
        "cuda": cuda_backend,
        "onednn": lambda math, graphs: OneDnnBackend(),
        "reference": lambda math, graphs: ReferenceBackend(),
        "null": lambda math, graphs: NullBackend(),
    }
)
AUTO = "auto"
COSTS = ("measured", "analytic")
LARGEST_BATCH = 2**41
"""Values in a batch: 16 TiB of float64."""


def usable_cores() -> int:
    """Processor cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_shape(value: object) -> tuple[int, ...]:
    """Return a shape as a tuple of ints.

    Raises:
        ShapeError: not whole numbers of at least 1, or a batch beyond 16 TiB, whose sizes no arithmetic here could hold.
    """
    sizes = tuple(value) if isinstance(value, Iterable) else ()
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1 for n in sizes)
    if not whole or len(sizes) < 2:
        raise ShapeError("input_shape", "positive whole numbers (N, C, H, W) or (N, F)", repr(value))
    shape = tuple(int(n) for n in sizes)
    if math.prod(shape) > LARGEST_BATCH:
        raise ShapeError(
            "input_shape", f"at most {LARGEST_BATCH} values in a batch", f"{shape}", "Give a smaller batch."
        )
    return shape


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices of a run.

    Attributes:
        input_shape: (N, C, H, W) of a full batch.
        optimizer: what updates the parameters.
        memory: bytes, or text such as "400 MiB"; None takes 80 % of what is free.
        strategy: name of what plans.
        kernels: "fit" takes the fastest that fits the free bytes, "fixed" the library's first, whatever the budget.
        backend: name of what computes; "auto" in float32 is a GPU where there is one, then oneDNN, else numpy.
        dtype: "float32" or "float64".
        seed: of first values, dropout and shuffling.
        threads: of the backend; None takes all cores.
        costs: "measured" times each kernel once, "analytic" estimates by arithmetic.
        link: rates to and from the memory outside, as `parse_link` reads them; None measures those of the spill folder
            where tensors may be moved.
        spill_dir: folder, on a disk, for the tensors that are moved out; None takes `default_spill_folder`.
        spill_size: the most bytes that are moved out at a time; None takes what the disk has free, or half of the host's
            memory that is free, where a GPU moves them there.
        math: how a GPU multiplies: "float32"; "tf32", with factors rounded to 10 bits of mantissa; "bf16", with images
            in 16 bits, weights and statistics in 32.
        cuda_graphs: whether a GPU's step is captured into a graph and launched as one.
    """

    input_shape: tuple[int, ...]
    optimizer: SGD
    memory: int | str | None = None
    strategy: str = "auto"
    kernels: str = "fit"
    backend: str = AUTO
    dtype: str = "float32"
    seed: int = 0
    threads: int | None = None
    costs: str = "measured"
    link: str | None = None
    spill_dir: str | None = None
    spill_size: int | str | None = None
    math: str = "float32"
    cuda_graphs: bool = True

    def __post_init__(self) -> None:
        as_shape(self.input_shape)
        parse_strategy(self.strategy)
        one_of("kernels", self.kernels, [k.value for k in Kernels])
        one_of("backend", self.backend, [AUTO, *BACKENDS])
        one_of("dtype", self.dtype, DTYPES)
        one_of("costs", self.costs, COSTS)
        one_of("math", self.math, MATH)
        if self.math != "float32" and self.backend not in (AUTO, "cuda"):
            raise ConfigError("math", f"'float32' on the backend {self.backend!r}", repr(self.math))
        if self.link is not None:
            parse_link(self.link)
        if self.spill_dir is not None and not (isinstance(self.spill_dir, (str, os.PathLike)) and str(self.spill_dir)):
            raise ConfigError("spill_dir", "the name of a folder on a disk", repr(self.spill_dir))
        if self.spill_size is not None:
            parse_size(self.spill_size, "spill_size")
        if not isinstance(self.optimizer, SGD):
            raise ConfigError("optimizer", "an SGD, such as SGD(0.1, momentum=0.9)", repr(self.optimizer))
        if self.threads is not None and not (isinstance(self.threads, int) and self.threads >= 1):
            raise ConfigError("threads", "a whole number of at least 1", repr(self.threads))
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ConfigError("seed", "a whole number from 0 to 2⁶³ − 1", repr(self.seed))

    @property
    def measured(self) -> bool:
        """Whether planning times kernels, for which it needs memory."""
        return self.costs == "measured" and self.backend != "null"

    @property
    def spills(self) -> bool:
        """Whether tensors may be moved out: the strategy does so by its nature, or may (as `auto`) and was told so."""
        use = find_link_use(self.strategy)
        told = any(given is not None for given in (self.link, self.spill_dir, self.spill_size))
        return use is LinkUse.REQUIRED or (use is LinkUse.OPTIONAL and told)

    @property
    def most_outside_bytes(self) -> int | None:
        """What a plan may leave outside the arena at a time; None where the user sets no limit."""
        return None if self.spill_size is None else parse_size(self.spill_size, "spill_size")

    def make_backend(self) -> Backend:
        """The backend of that name; raises DeviceError when its library is missing, but for "auto"."""
        if self.backend != AUTO:
            return BACKENDS[self.backend](self.math, self.cuda_graphs)
        if self.dtype == "float32":
            for name, level, instead in (
                ("cuda", logging.INFO, "computing on the processor"),
                ("onednn", logging.WARNING, "computing with numpy, which is slower"),
            ):
                try:
                    return BACKENDS[name](self.math, self.cuda_graphs)
                except DeviceError as error:
                    logger.log(level, "%s (%s)", instead, error)
        return ReferenceBackend()
