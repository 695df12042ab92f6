"""The strategies, and all that a strategy of one's own needs: what it derives from, declares, reads and proposes.

`Strategy` is what the planner asks, `StrategyKind` the declaration that `register_strategy` takes. A strategy is made
for a `Placer`, whose `problem` is all that may be looked at: the graph, its costs and where the state lies. It proposes
an `Order`: ids of operations, a second occurrence being a recomputation, and between them `Move`s of tensors. The
placer gives an order its instances, kernels and addresses, which make it a `PlacedOrder`.
"""

from ..layout.moves import Move, Order, Transfer
from ..layout.placer import PlacedOrder, Placer
from ..layout.problem import Problem
from .auto import BestOf
from .names import find_link_use, list_spellings, parse_strategy
from .natural import NaturalFirst, NaturalOrder
from .registry import STRATEGIES, make_strategy, register_strategy, unregister_strategy
from .strategy import LinkUse, Strategy, StrategyKind, StrategyName

__all__ = [
    "STRATEGIES",
    "BestOf",
    "LinkUse",
    "Move",
    "NaturalFirst",
    "NaturalOrder",
    "Order",
    "PlacedOrder",
    "Placer",
    "Problem",
    "Strategy",
    "StrategyKind",
    "StrategyName",
    "Transfer",
    "find_link_use",
    "list_spellings",
    "make_strategy",
    "parse_strategy",
    "register_strategy",
    "unregister_strategy",
]
