"""The strategies by name, to which programs may add their own, and the one function that makes any of them.

Not checked here: what a strategy proposes. The planner verifies each plan before it returns it.
"""

from __future__ import annotations

from ...layers.graph import Graph
from ...memory.errors import ConfigError
from ...memory.registry import Registry
from ..layout.placer import Placer
from ..layout.problem import Problem
from .auto import AUTO
from .baselines import REVOLVE, SEQUENTIAL
from .chain import CHAIN
from .natural import KEEP, LIVENESS, NaturalFirst, NaturalOrder
from .offload_kinds import OFFLOAD, STREAM, SUPERNEURONS
from .strategy import LinkUse, Strategy, StrategyKind, StrategyName

STRATEGIES = Registry(
    "strategy",
    {kind.name: kind for kind in (AUTO, KEEP, LIVENESS, CHAIN, SEQUENTIAL, REVOLVE, OFFLOAD, *SUPERNEURONS, STREAM)},
    "bt.unregister_strategy({})",
)
"""Every strategy by its name, in the order in which people are told them."""


def register_strategy(kind: StrategyKind) -> None:
    """Add a strategy, which can then be named wherever one is asked for: in a `Trainer`, a plan, a curve.

    Raises:
        ConfigError: it is no declaration, the name is no name, or another strategy has it.
    """
    if not isinstance(kind, StrategyKind) or not callable(kind.make):
        raise ConfigError("register_strategy", "a StrategyKind whose `make` is a function", repr(kind))
    STRATEGIES.add(kind.name, kind)


def unregister_strategy(name: str) -> None:
    """Take back a strategy that was added.

    Raises:
        ConfigError: no strategy of that name was added.
    """
    STRATEGIES.remove(name)


def list_spellings() -> tuple[str, ...]:
    """List all strategies as people are told them: each name, and behind its colon what may stand there."""
    return tuple(
        spelling
        for kind in STRATEGIES.values()
        for spelling in (kind.name, *(f"{kind.name}:{detail}" for detail in kind.details))
    )


def find_least_without_link() -> str:
    """Find the name of the strategy that moves nothing and of all such strategies needs the least memory."""
    return next(k.name for k in STRATEGIES.values() if k.link is LinkUse.NONE and k.least_without_link)


def find_least_with_link() -> str:
    """Find the name of the strategy that needs the least memory of all where there is a link."""
    return next(k.name for k in STRATEGIES.values() if k.link is LinkUse.REQUIRED and k.least_with_link)


def require_link(problem: Problem, name: StrategyName) -> None:
    """Refuse a strategy that moves tensors where nobody said how fast.

    Raises:
        ConfigError: the strategy needs a link, and the problem's cost table has none.
    """
    if problem.costs.link is None and STRATEGIES.find(name.name).link is LinkUse.REQUIRED:
        raise ConfigError(
            "link",
            f"the speed at which strategy {str(name)!r} can move tensors out of the arena and back",
            "none",
            "Give --link OUT,IN in bytes per second, such as '1 GB,1.5 GB'.",
        )


def make_strategy(placer: Placer, name: StrategyName) -> Strategy:
    """Make the strategy of that name for the problem of a placer; nothing is solved yet.

    State may lie outside the arena already, because another program of the run has put it there. Then tensors must be
    moved, so `offload` stands in for every strategy that does not move any. Graphs without a backward pass run in
    their own order where the strategy does not plan them.

    Raises:
        ConfigError: the strategy needs a link and there is none, or its detail does not fit the network.
    """
    problem, kind = placer.problem, STRATEGIES.find(name.name)
    if problem.state.outside:
        if kind.link is not LinkUse.REQUIRED:
            kind, name = OFFLOAD, StrategyName(OFFLOAD.name)
        require_link(problem, name)
        return kind.make(placer, name)
    if not kind.without_backward and not has_backward(problem.graph):
        return NaturalOrder(placer)
    require_link(problem, name)
    strategy = kind.make(placer, name)
    if not isinstance(strategy, Strategy):
        hint = "`make` must return what it makes, derived from Strategy."
        raise ConfigError(f"strategy {str(name)!r}", "a Strategy from its `make`", repr(strategy), hint)
    return NaturalFirst(placer, strategy) if kind.natural_first else strategy


def has_backward(graph: Graph) -> bool:
    """Return whether a graph has a backward pass, as that of a training step."""
    return any(op.forward_op != op.id for op in graph.ops)
