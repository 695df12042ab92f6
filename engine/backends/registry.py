"""Which backends there are, by the names that `device=` and `--device` take, and the making of one.

A program may add a backend of its own under a name of its own; "auto" chooses among those of the package. Nothing is
loaded before a backend is made: a library that is missing is an error only for the user who asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...memory.errors import ConfigError, DeviceError
from ...memory.registry import Registry
from .backend import MEMBERS, Backend
from .cuda.gpu_library import cuda_backend
from .cuda.graphs import MATH
from .null import NullBackend
from .onednn import OneDnnBackend
from .reference import ReferenceBackend

logger = logging.getLogger(__name__)

AUTO = "auto"
"""The name under which a backend is chosen by what the machine has."""

FLOAT32 = ("float32",)
"""The arithmetic of a backend that multiplies as the type of the numbers says."""


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Choices of a run that a backend may want to know when it is made.

    Attributes:
        dtype: type of all numbers, "float32" or "float64".
        math: how factors of products are rounded, one of those that the backend was registered with.
        cuda_graphs: whether a GPU's step is captured into a graph and launched as one.
    """

    dtype: str = "float32"
    math: str = "float32"
    cuda_graphs: bool = True


MakeBackend = Callable[[BackendOptions], Backend]
"""Makes a backend; raises DeviceError where its library, or the device itself, is missing."""


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """What is known of a backend before it is made.

    Attributes:
        make: makes it.
        math: which of `MATH` it knows; the first is its default.
        computes: whether its launches compute anything; one that does not serves planning alone.
    """

    make: MakeBackend
    math: tuple[str, ...] = FLOAT32
    computes: bool = True


def _make_best(options: BackendOptions) -> Backend:
    """Make the backend of "auto": in float32 a GPU's where there is one, then oneDNN's, else numpy's.

    One that does not compute with the math that was asked for is passed over.

    Raises:
        ConfigError: none that can be made computes with that math.
    """
    reasons = []
    if options.dtype == "float32":
        for name, level, instead in (
            ("cuda", logging.INFO, "computing on the processor"),
            ("onednn", logging.WARNING, "computing with numpy, which is slower"),
        ):
            if options.math not in BACKENDS[name].math:
                continue
            try:
                return BACKENDS[name].make(options)
            except DeviceError as error:
                reasons.append(str(error))
                logger.log(level, "%s (%s)", instead, error)
    if options.math not in BACKENDS["reference"].math:
        expected = "'float32', as nothing here computes otherwise" + (
            "" if options.dtype == "float32" else f" in {options.dtype}"
        )
        raise ConfigError("math", expected, repr(options.math), "; ".join(reasons))
    return BACKENDS["reference"].make(options)


BACKENDS: Registry[BackendEntry] = Registry(
    "device",
    {
        AUTO: BackendEntry(_make_best, MATH),
        "cuda": BackendEntry(lambda options: cuda_backend(options.math, options.cuda_graphs), MATH),
        "onednn": BackendEntry(lambda options: OneDnnBackend()),
        "reference": BackendEntry(lambda options: ReferenceBackend()),
        "null": BackendEntry(lambda options: NullBackend(), computes=False),
    },
    "bt.unregister_backend({})",
)
"""All backends by the name that chooses them."""


OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {"gpu": "cuda", "nvidia": "cuda", "cpu": "onednn", "mkldnn": "onednn", "dnnl": "onednn", "numpy": "reference"}
)
"""What other libraries call devices, and what computes on these here."""


def find_backend(device: str) -> BackendEntry:
    """Return what is known of the backend of that name.

    Raises:
        ConfigError: there is none; names the nearest, or the one that other libraries call so.
    """
    meant = OTHER_NAMES.get(device.lower().split(":")[0]) if isinstance(device, str) else None
    meant = "cuda" if isinstance(device, str) and device.startswith("cuda:") else meant
    if meant is not None and device not in BACKENDS:
        hint = f"Write {meant!r}" + (", or 'reference' for numpy." if meant == "onednn" else ".")
        raise ConfigError("device", f"one of {', '.join(BACKENDS)}", repr(device), hint)
    return BACKENDS.find(device)


def make_backend(device: str, options: BackendOptions | None = None) -> Backend:
    """Make the backend of that name.

    Raises:
        ConfigError: there is no backend of that name, or it does not compute with the math that was asked for.
        DeviceError: its library or device is missing; "auto" then takes another.
    """
    options = BackendOptions() if options is None else options
    backend = find_backend(device).make(options)
    missing = [name for name in MEMBERS if not hasattr(backend, name)]
    if missing:
        found = f"{type(backend).__name__} without {', '.join(missing)}"
        raise ConfigError(f"device {device!r}", "an object with the members of Backend", found)
    if backend.math != options.math:
        expected, found = f"{options.math!r}, as asked for", f"a backend that computes in {backend.math!r}"
        raise ConfigError(f"math of the device {device!r}", expected, found, "Leave math out, or take another device.")
    return backend


def register_backend(name: str, make: MakeBackend, *, math: tuple[str, ...] = FLOAT32) -> None:
    """Add a backend, which `device=name` then chooses.

    Args:
        name: letters, digits, "_" and "-".
        make: makes the backend, an object as `engine.backends.backend.Backend` describes it, from `BackendOptions`.
        math: which values of `math=` it accepts.

    Raises:
        ConfigError: the name will not do, or another backend has it.
    """
    if not callable(make):
        raise ConfigError("register_backend", "a function from BackendOptions to a backend", repr(make))
    BACKENDS.add(name, BackendEntry(make, math))


def unregister_backend(name: str) -> None:
    """Take back a backend that was added; a trainer that was made with it keeps it.

    Raises:
        ConfigError: there is no such name, or the backend is the package's own.
    """
    BACKENDS.remove(name)
