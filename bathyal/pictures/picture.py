"""Pictures by matplotlib, which is optional, without touching what a user's program does with it.

A figure is made and written by itself: no pyplot, no backend is chosen, nothing is left open.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.atomic_write import write_whole
from ..memory.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


def require_drawing(path: Path) -> None:
    """Say before the work begins that its picture cannot be drawn.

    Raises:
        ConfigError: a kind of file that is not written.
        DeviceError: matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError("--plot", "a file that ends in " + ", ".join(SUFFIXES), repr(str(path)))
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise DeviceError("--plot", "matplotlib", str(error), "Install it with: pip install 'bathyal[plot]'") from error


def make_figure(width: float, height: float) -> Figure:
    """Make an empty figure, in inches, that draws with Agg."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write(figure: Figure, path: Path) -> None:
    """Draw and write a figure, aside and renamed.

    Raises:
        ConfigError: there is something at `path` that is no regular file.
        OSError: it cannot be written; what was there is unharmed.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower()[1:], dpi=150)
    write_whole(path, drawn.getvalue())
