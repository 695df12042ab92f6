"""A plan as a picture: live bytes over the seconds of a step, by what they are for, under the line of the budget."""

from __future__ import annotations

from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..engine.programs import Planned
from ..memory.sizes import format_size
from ..scheduler.plan.occupancy import Occupancy, Use, measure_occupancy
from . import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Numbers: TypeAlias = npt.NDArray[Any]

MIB = 2**20
COLUMNS = 4000
"""Longer steps are drawn by the fullest moment of each of so many stretches of time."""
COLORS = MappingProxyType(
    {
        Use.STATE: "#7f7f7f",
        Use.FED: "#f0e442",
        Use.ACTIVATIONS: "#56b4e9",
        Use.GRADIENTS: "#e69f00",
        Use.WORKSPACE: "#cc79a7",
    }
)
"""From the bottom up; told apart by the colour-blind (Okabe and Ito)."""
LANES = MappingProxyType({"out": "#0072b2", "in": "#009e73"})
"""What moves, above the plan: from the arena and back."""


def draw(planned: Planned) -> Figure:
    """Draw the plan of a step."""
    plan, graph = planned.plan, planned.graph
    found = measure_occupancy(plan, graph, planned.costs)
    figure = picture.make_figure(10, 5)
    axes = figure.add_subplot()
    edges, rows = _cut_columns(found)
    stack = [np.append(row, row[-1:]) / MIB for row in rows]
    axes.stackplot(
        edges, stack, labels=[use.value for use in COLORS], colors=list(COLORS.values()), step="post", linewidth=0
    )
    budget = plan.budget_bytes / MIB
    top = plan.peak_bytes / MIB
    # A budget far above what is used would press the plan to the floor: then the line is named, not drawn.
    if budget <= 1.5 * top:
        axes.axhline(budget, color="#d55e00", linestyle="--", label=f"budget {format_size(plan.budget_bytes)}")
        top = budget
    axes.set_ylim(0, (1.24 if found.transfers else 1.12) * top or 1)
    axes.set_xlim(0, float(found.edges[-1]) or 1)
    _mark_passes(axes, found)
    _mark_repeated(axes, found, 0.015 * top)
    _draw_transfers(axes, found, 1.03 * top, 0.05 * top)
    axes.set_xlabel("seconds, predicted")
    axes.set_ylabel("live MiB")
    axes.set_title(
        f"{graph.name}: strategy {plan.strategy}, peak {format_size(plan.peak_bytes)} of "
        f"{format_size(plan.budget_bytes)}, {plan.predicted_seconds:.4g} s"
    )
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _cut_columns(found: Occupancy) -> tuple[_Numbers, list[_Numbers]]:
    rows = [found.nbytes[use] for use in COLORS]
    count = len(found.repeated)
    if count <= COLUMNS:
        return found.edges, rows
    total = np.sum(rows, axis=0)
    cuts = np.linspace(0, count, COLUMNS + 1).astype(int)
    fullest = np.array([a + int(total[a:b].argmax()) for a, b in pairwise(cuts.tolist())])
    return found.edges[cuts], [row[fullest] for row in rows]


def _mark_passes(axes: Axes, found: Occupancy) -> None:
    for name, (begin, end) in found.passes.items():
        if begin:
            axes.axvline(begin, color="black", linewidth=0.8)
        at, offset = (end, 3) if name == "loss" else ((begin + end) / 2, 0)  # the loss is too short to write into
        axes.annotate(
            name,
            (at, 0.985),
            xytext=(offset, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="left" if offset else "center",
            va="top",
            fontsize=9,
        )


def _mark_repeated(axes: Axes, found: Occupancy, height: float) -> None:
    """Draw a strip at the bottom where operations run again."""
    flips = np.flatnonzero(np.diff(found.repeated.astype(np.int8), prepend=0, append=0))
    if len(flips):
        begins, ends = found.edges[flips[::2]], found.edges[flips[1::2]]
        spans = list(zip(begins.tolist(), (ends - begins).tolist(), strict=True))
        axes.broken_barh(spans, (0, height), facecolors="black", label="computed again")


def _draw_transfers(axes: Axes, found: Occupancy, bottom: float, height: float) -> None:
    """Draw a lane for each direction, as long as its transfers take, between the bytes and the names of the passes."""
    end = float(found.edges[-1])
    for lane, (name, color) in enumerate(LANES.items()):
        spans = [(c.start, c.end - c.start) for c in found.transfers if c.outward is (name == "out")]
        if spans:
            level = bottom + lane * 1.1 * height
            axes.broken_barh(spans, (level, height), facecolors=color, edgecolors="white", linewidth=0.3)
            axes.annotate(
                name,
                (end, level + height / 2),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=color,
                annotation_clip=False,
            )
