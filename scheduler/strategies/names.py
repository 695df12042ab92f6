"""How names of strategies are read: `sequential:4` is `sequential` in four segments, `offload:lru` a rule of eviction.

The names, and what may stand behind the colon of each, are those of the registered strategies. Decides from the text
alone. Not checked: whether a network has as many blocks as segments are asked for.
"""

from __future__ import annotations

import difflib

from ...memory.errors import ConfigError, one_of
from .registry import STRATEGIES, list_spellings
from .strategy import LinkUse, StrategyName

__all__ = ["STRATEGIES", "StrategyName", "find_link_use", "list_spellings", "parse_strategy"]


def parse_strategy(text: str | StrategyName) -> StrategyName:
    """Read the name of a strategy; one that has been read is read again, since anybody can make one.

    Raises:
        ConfigError: there is no such strategy, or it cannot have what stands behind the colon; names the nearest.
    """
    if isinstance(text, StrategyName):
        text = str(text)
    if not isinstance(text, str) or ":" not in text:
        return StrategyName(one_of("strategy", text, tuple(STRATEGIES)))
    name, _, detail = text.partition(":")
    kind = STRATEGIES.get(name)
    if kind is not None and kind.read_detail is not None:
        return StrategyName(name, kind.read_detail(name, detail))
    near = difflib.get_close_matches(name, tuple(STRATEGIES), n=1)
    hint = ""
    if near:
        nearest = near[0] if STRATEGIES[near[0]].read_detail is None else f"{near[0]}:{detail}"
        hint = f"Did you mean {nearest!r}?"
    raise ConfigError("strategy", "one of " + ", ".join(list_spellings()), repr(text), hint)


def find_link_use(strategy: str | StrategyName) -> LinkUse:
    """Return what a strategy does with a link: whether it moves tensors out of the arena.

    Raises:
        ConfigError: as `parse_strategy` does.
    """
    return STRATEGIES.find(parse_strategy(strategy).name).link
