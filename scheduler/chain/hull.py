"""The lower convex hull of points of bytes and seconds, from which both lower bounds choose what to hold.

A linear relaxation of a knapsack takes the edges of the hulls of all blocks in the order of their slopes: first the
bytes that save the most seconds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

HullEdge = tuple[float, int]
"""The seconds that each byte of an edge saves, and its number of bytes."""
Hull = tuple[float, list[HullEdge]]
"""Seconds at the fewest bytes, and the edges of a lower convex hull from there, steepest first."""


def find_lower_hull(nbytes: Sequence[int], seconds: Sequence[float]) -> Hull:
    """Find the lower convex hull of points (bytes, seconds), from the point of fewest bytes on."""
    points: list[tuple[int, float]] = []
    for x, y in sorted(zip(nbytes, seconds, strict=True)):
        if points and y >= points[-1][1]:
            continue
        while len(points) > 1 and _is_above(points[-2], points[-1], (x, y)):
            points.pop()
        points.append((x, y))
    edges = [((a[1] - b[1]) / (b[0] - a[0]), b[0] - a[0]) for a, b in pairwise(points)]
    return points[0][1], edges


def _is_above(left: tuple[int, float], middle: tuple[int, float], right: tuple[int, float]) -> bool:
    """Whether a point lies on or above the line between its neighbours, so that it is no corner of the hull."""
    return (middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0])
