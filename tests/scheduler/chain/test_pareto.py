"""What is kept of a list, beside a look at every pair."""

import itertools
import random

from bathyal.scheduler.chain.pareto import drop_dominated


def test_an_item_is_kept_if_nothing_before_it_is_as_cheap_in_all_numbers():
    rng = random.Random(0)
    for _ in range(200):
        items = [tuple(rng.randint(0, 4) for _ in range(3)) for _ in range(rng.randint(0, 12))]
        expected = [
            item
            for i, item in enumerate(items)
            if not any(all(a <= b for a, b in zip(other, item, strict=True)) for other in items[:i])
        ]
        assert drop_dominated(items, lambda item: item) == expected


def test_of_sorted_items_the_pareto_set_is_left():
    items = sorted(itertools.product(range(4), repeat=2))
    points = [(a, b) for a, b in items if a + b >= 3]
    assert drop_dominated(points, lambda item: item) == [(0, 3), (1, 2), (2, 1), (3, 0)]


def test_costs_may_be_of_some_numbers_only_and_the_first_of_equals_is_kept():
    items = [("a", 1), ("b", 1), ("c", 0)]
    assert drop_dominated(items, lambda item: (item[1],)) == [("a", 1), ("c", 0)]
    assert drop_dominated([], lambda item: (item,)) == []
