"""Time against memory as a picture: a line for each strategy, and the bound below which no plan can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..scheduler.curve import Point
from . import picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIB = 2**20
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = "osD^vPX"


def draw(title: str, points: Sequence[Point], seconds: float) -> Figure:
    """Draw what `curve` found.

    Args:
        title: of the picture.
        points: in the order of `curve`.
        seconds: of a step with no limit, which the times are given by.
    """
    figure = picture.make_figure(8, 5)
    axes = figure.add_subplot()
    for number, strategy in enumerate(dict.fromkeys(point.strategy for point in points)):
        mine = sorted((p for p in points if p.strategy == strategy), key=lambda p: (p.peak_bytes, -p.predicted_seconds))
        few = strategy.startswith(("sequential", "revolve"))  # there is no plan between their points
        axes.plot(
            [point.peak_bytes / MIB for point in mine],
            [point.predicted_seconds / seconds for point in mine],
            color=COLORS[number % len(COLORS)],
            marker=MARKS[number % len(MARKS)],
            markersize=6,
            fillstyle="none",
            drawstyle="steps-post" if few else "default",
            label=strategy,
        )
    bound = sorted({(point.budget_bytes, point.lower_bound_seconds) for point in points})
    axes.plot(
        [nbytes / MIB for nbytes, _ in bound], [s / seconds for _, s in bound], "k--", linewidth=1, label="lower bound"
    )
    axes.set_xlabel("MiB, all of a step")
    axes.set_ylabel("seconds by those with no limit")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
