"""The names of strategies."""

import pytest

from bathyal.memory.errors import ConfigError
from bathyal.scheduler.planner import make_plan
from bathyal.scheduler.strategies.names import (
    STRATEGIES,
    StrategyName,
    list_spellings,
    parse_strategy,
)
from tests.support.plan_checks import PLENTY
from tests.support.random_networks import random_problem
from tests.support.spilling import needs_link


def test_names_are_read_and_written():
    for name in STRATEGIES:
        assert parse_strategy(name) == StrategyName(name)
        assert str(StrategyName(name)) == name
        assert name in list_spellings()
    assert parse_strategy("sequential:12") == StrategyName("sequential", 12)
    assert str(parse_strategy("sequential:012")) == "sequential:12"
    for name in filter(needs_link, STRATEGIES):
        for eviction in ("lru", "farthest"):
            assert parse_strategy(f"{name}:{eviction}") == StrategyName(name, eviction)
            assert str(StrategyName(name, eviction)) == f"{name}:{eviction}"


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        ("livenes", "'liveness'"),
        ("sequental", "'sequential'"),
        ("sequental:4", "'sequential:4'"),
        ("sequential:", "sequential:4"),
        ("sequential:x", "sequential:4"),
        ("sequential:2.5", "sequential:4"),
        ("sequential: 4", "sequential:4"),
        ("sequential:4:2", "sequential:4"),
        ("sequential:0", "'sequential:1' is the nearest"),
        ("sequential:-3", "'sequential:1' is the nearest"),
        ("sequential:" + "9" * 5000, "whole number"),
        ("revolve:3", "'revolve'"),
        ("chain:2", "'chain'"),
        ("offload:fifo", "lru, farthest"),
        ("offload:lro", "'lru'"),
        ("ofload:lru", "'offload:lru'"),
        ("superneuron", "'superneurons'"),
        ("superneurons-sped", "'superneurons-speed'"),
        (":", "sequential:K"),
        ("", "one of"),
        (None, "one of"),
        (3, "one of"),
    ],
)
def test_what_is_no_strategy_is_refused_with_what_is_near(text, helps):
    with pytest.raises(ConfigError, match=helps):
        parse_strategy(text)


def test_more_segments_than_blocks_name_the_nearest():
    problem = random_problem(4)
    with pytest.raises(ConfigError, match=r"'sequential:\d+' is the nearest") as refused:
        make_plan(problem, "sequential:1000", PLENTY)
    nearest = refused.value.hint.split("'")[1]
    assert make_plan(problem, nearest, PLENTY).strategy == nearest
