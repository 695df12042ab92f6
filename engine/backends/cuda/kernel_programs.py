"""Which kinds of operation the backend's own kernels serve, and their source text.

Convolutions, batch norm with the batch's statistics, ReLU and matrix products are the libraries'. `bias_add` and
`bias_gradient` complete their products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from .channel_sums import bias_gradient
from .dropout import DROPOUT
from .elementwise import ELEMENTWISE, bias_add
from .kernel_program import KernelProgram
from .loss import LOSS
from .movement import MOVEMENT
from .op_request import OpRequest
from .optimizer import OPTIMIZER
from .pooling import POOLING
from .response_norm import RESPONSE_NORM
from .running_statistics import RUNNING_STATISTICS

__all__ = ["FOLDER", "PROGRAMS", "SOURCES", "bias_add", "bias_gradient", "source_text"]

PROGRAMS: Mapping[str, Callable[[OpRequest], KernelProgram]] = MappingProxyType(
    {
        **DROPOUT,
        **ELEMENTWISE,
        **LOSS,
        **MOVEMENT,
        **OPTIMIZER,
        **POOLING,
        **RESPONSE_NORM,
        **RUNNING_STATISTICS,
    }
)
"""By kind; each raises DeviceError for types and layouts that its kernels do not take."""

FOLDER = Path(__file__).parent / "kernels"
"""Where the kernels' sources are."""
SOURCES = (
    "batch_norm.cu",
    "channel_sums.cu",
    "dropout.cu",
    "elementwise.cu",
    "loss.cu",
    "movement.cu",
    "optimizer.cu",
    "pooling.cu",
    "response_norm.cu",
)
"""Files of `FOLDER` that hold kernels; each compiles alone, with `FOLDER` among the include directories."""


def source_text() -> str:
    """All kernels as one translation unit without includes of its own, for a compiler that is given a string."""
    texts = [(FOLDER / name).read_text(encoding="utf-8") for name in ("prelude.cuh", *SOURCES)]
    return "\n".join(text.replace('#include "prelude.cuh"\n', "") for text in texts)
