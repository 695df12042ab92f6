"""The items of a list that no other item beats in all that they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def drop_dominated(items: Iterable[Item], costs: Callable[[Item], tuple[float, ...]]) -> list[Item]:
    """Keep each item that costs less, in at least one number, than every item kept before it.

    Where the items are sorted by their costs, the result is their Pareto set, each point of it once.

    Args:
        items: in the order in which they are looked at.
        costs: the numbers of an item, of which less is better; of every item equally many.
    """
    kept: list[Item] = []
    kept_costs: list[tuple[float, ...]] = []
    for item in items:
        own = costs(item)
        if not any(all(a <= b for a, b in zip(other, own, strict=True)) for other in kept_costs):
            kept.append(item)
            kept_costs.append(own)
    return kept
