"""What a strategy is: the name by which it is asked for, what it declares of itself, and what the planner asks it.

A strategy proposes orders of operations, with moves of tensors between them where it has a link. Lifetimes, kernels and
addresses follow from an order (`Placer`), and the planner verifies what comes of it before anything runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ..layout.placer import PlacedOrder, Placer

Detail: TypeAlias = "int | str"
"""What stands behind the colon of a strategy's name, once it has been read."""


@dataclass(frozen=True, slots=True)
class StrategyName:
    """A strategy as it was asked for.

    Attributes:
        name: the name of a registered strategy.
        detail: what stood behind the colon, as the strategy's `read_detail` returned it; None where nothing did.
    """

    name: str
    detail: Detail | None = None

    def __str__(self) -> str:
        return self.name if self.detail is None else f"{self.name}:{self.detail}"


class Strategy(ABC):
    """Proposes orders of one graph, placed in an arena.

    A constructor stores. What takes time is done when it is first asked for and kept, as many budgets may be asked for.
    """

    @abstractmethod
    def smallest(self) -> PlacedOrder:
        """Return the placed order that needs the least memory; its end is the smallest budget that is accepted."""

    @abstractmethod
    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        """Return the fastest placed order that ends within the budget; None where none is found.

        It is asked for budgets of at least `smallest().end` alone. Where it finds none, the planner takes `smallest()`.
        """

    def chain_bound_seconds(self, budget_bytes: int) -> float:
        """Return the seconds below which no plan of the chain's options is; 0 where the strategy has no such bound."""
        return 0.0


class LinkUse(Enum):
    """What a strategy does with a link to memory outside the arena.

    `NONE` moves no tensor. `OPTIONAL` moves some where there is a link, `REQUIRED` always may: it is refused without
    one.
    """

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


MakeStrategy: TypeAlias = Callable[[Placer, StrategyName], Strategy]
"""Makes a strategy for the problem of a placer; refuses with a ConfigError a detail that the problem does not allow."""


@dataclass(frozen=True, slots=True)
class StrategyKind:
    """The declaration of a strategy: all that the planner, the settings and the command line must know of it.

    Attributes:
        name: letters, digits, `_` and `-`.
        make: makes the strategy for a problem.
        link: whether the strategy moves tensors out of the arena and back.
        natural_first: whether the graph's own order is taken while it fits, before the strategy is asked for another.
        without_backward: whether the strategy plans graphs without a backward pass, as those of evaluation and
            prediction. For a strategy that does not, such a graph runs in its own order.
        whole_step: whether every tensor has memory of its own for the whole step.
        least_without_link: whether no strategy that moves nothing needs less memory. One that moves nothing and
            declares this is what people are told to take where the plan of another does not fit.
        least_with_link: whether, where there is a link, no strategy needs less memory. One that requires a link and
            declares this is what people are told to take where they can give one.
        read_detail: reads what stands behind the colon: from the strategy's name and the text to a number or a word. It
            raises a ConfigError that says what may stand there. None where the name stands alone.
        details: what people are told may stand behind the colon, such as "K" for "sequential:K".
    """

    name: str
    make: MakeStrategy
    link: LinkUse = LinkUse.NONE
    natural_first: bool = True
    without_backward: bool = False
    whole_step: bool = False
    least_without_link: bool = False
    least_with_link: bool = False
    read_detail: Callable[[str, str], Detail] | None = None
    details: tuple[str, ...] = ()
