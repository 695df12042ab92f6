"""The names of strategies, and what is written behind them.

`sequential:4` is `sequential` in four segments, `offload:lru` is `offload` with a cache that the least recently used leave
first. Decides from the text alone. Not checked: whether a network has as many blocks as segments are asked for; the planner is.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ...memory.errors import ConfigError, one_of

STRATEGIES = (
    "auto",
    "keep",
    "liveness",
    "chain",
    "sequential",
    "revolve",
    "offload",
    "superneurons",
    "superneurons-speed",
    "superneurons-memory",
    "stream",
)
MOVING = ("offload", "superneurons", "superneurons-speed", "superneurons-memory", "stream")
"""Those that move tensors out of the arena, for which they need to know the speed of a link."""
EVICTION_RULES = ("lru", "farthest")
SPELLINGS = ("auto", "keep", "liveness", "chain", "sequential", "sequential:K", "revolve", *MOVING, "offload:lru")
"""As people are told them."""


@dataclass(frozen=True, slots=True)
class StrategyName:
    """A strategy as it was asked for.

    Attributes:
        name: one of `STRATEGIES`.
        segments: of `sequential`, at least 1; None takes the best number.
        eviction: of those that are `MOVING`, one of `EVICTION_RULES`; None takes the better.
    """

    name: str
    segments: int | None = None
    eviction: str | None = None

    def __str__(self) -> str:
        detail = self.eviction if self.segments is None else self.segments
        return self.name if detail is None else f"{self.name}:{detail}"


def parse_strategy(text: str) -> StrategyName:
    """Read the name of a strategy.

    Raises:
        ConfigError: no such strategy, no whole number of at least 1 where one belongs, or no such eviction; names the
            nearest.
    """
    if not isinstance(text, str) or ":" not in text:
        return StrategyName(one_of("strategy", text, STRATEGIES))
    name, _, detail = text.partition(":")
    if name in MOVING:
        return StrategyName(name, eviction=one_of(f"strategy {name!r}", detail, EVICTION_RULES))
    near = difflib.get_close_matches(name, STRATEGIES, n=1)
    if name != "sequential":
        hint = ""
        if near:
            hint = f"Did you mean {near[0] + ':' + detail if near[0] in ('sequential', *MOVING) else near[0]!r}?"
        raise ConfigError("strategy", "one of " + ", ".join(SPELLINGS), repr(text), hint)
    if re.fullmatch("[0-9]{1,9}", detail) is None or int(detail) < 1:
        hint = "'sequential:1' is the nearest." if re.fullmatch("-?[0-9]+", detail) else "For example 'sequential:4'."
        expected = "sequential:K with a whole number K of segments, at least 1"
        raise ConfigError("strategy", expected, repr(text), hint + " 'sequential' alone takes the best K.")
    return StrategyName(name, int(detail))
