"""The lower convex hull of points of bytes and seconds, on which the linear relaxations of both bounds walk down."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Segment = tuple[float, int]
"""Seconds saved by each byte, and for how many bytes."""
Hull = tuple[float, list[Segment]]
"""Seconds at the fewest bytes, and the segments of a lower convex hull from there, steepest first."""


def lower_hull(nbytes: Sequence[int], seconds: Sequence[float]) -> Hull:
    """The seconds at the fewest bytes, and the segments of the lower convex hull from there, steepest first."""
    points: list[tuple[int, float]] = []
    for x, y in sorted(zip(nbytes, seconds, strict=True)):
        if points and y >= points[-1][1]:
            continue
        while len(points) > 1 and (points[-1][1] - points[-2][1]) * (x - points[-2][0]) >= (y - points[-2][1]) * (
            points[-1][0] - points[-2][0]
        ):
            points.pop()
        points.append((x, y))
    segments = [((a[1] - b[1]) / (b[0] - a[0]), b[0] - a[0]) for a, b in pairwise(points)]
    return points[0][1], segments
