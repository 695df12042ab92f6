"""The names of strategies, and what is written behind them: `sequential:4` is `sequential` in four segments.

Decides from the text alone. Not checked: whether a network has as many blocks as segments are asked for; the planner is.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ..memory.errors import ConfigError, one_of

STRATEGIES = ("auto", "keep", "liveness", "chain", "sequential", "revolve")
SPELLINGS = ("auto", "keep", "liveness", "chain", "sequential", "sequential:K", "revolve")
"""As people are told them."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy as it was asked for.

    Attributes:
        name: one of `STRATEGIES`.
        segments: of `sequential`, at least 1; None takes the best number.
    """

    name: str
    segments: int | None = None

    def __str__(self) -> str:
        return self.name if self.segments is None else f"{self.name}:{self.segments}"


def parse_strategy(text: str) -> Strategy:
    """Read the name of a strategy.

    Raises:
        ConfigError: no such strategy, or no whole number of at least 1 where one belongs; names the nearest.
    """
    if not isinstance(text, str) or ":" not in text:
        return Strategy(one_of("strategy", text, STRATEGIES))
    name, _, number = text.partition(":")
    near = difflib.get_close_matches(name, STRATEGIES, n=1)
    if name != "sequential":
        hint = ""
        if near:
            hint = f"Did you mean {near[0] + ':' + number if near[0] == 'sequential' else near[0]!r}?"
        raise ConfigError("strategy", "one of " + ", ".join(SPELLINGS), repr(text), hint)
    if re.fullmatch("[0-9]{1,9}", number) is None or int(number) < 1:
        hint = "'sequential:1' is the nearest." if re.fullmatch("-?[0-9]+", number) else "For example 'sequential:4'."
        expected = "sequential:K with a whole number K of segments, at least 1"
        raise ConfigError("strategy", expected, repr(text), hint + " 'sequential' alone takes the best K.")
    return Strategy(name, int(number))
