"""The strategies that move tensors out, as they are asked for: `offload`, `superneurons` in three modes, `stream`."""

from __future__ import annotations

from functools import partial

from ...layers.graph import Phase
from ...memory.errors import one_of
from ..layout.placer import Placer
from ..offload.cache import EvictionRule
from ..offload.recompute import Recomputation
from .chain import ChainStrategy
from .offload import OffloadStrategy
from .strategy import LinkUse, Strategy, StrategyKind, StrategyName


def _read_rule(name: str, text: str) -> str:
    return one_of(f"strategy {name!r}", text, [rule.value for rule in EvictionRule])


def _make_offload(placer: Placer, name: StrategyName) -> Strategy:
    return OffloadStrategy(placer, name)


def _make_superneurons(recomputation: Recomputation, placer: Placer, name: StrategyName) -> Strategy:
    return OffloadStrategy(placer, name, recomputation=recomputation if _has_loss(placer) else None)


def make_stream(placer: Placer, name: StrategyName, chain: ChainStrategy | None = None) -> OffloadStrategy:
    """Make `stream`, whose chain plans come from `chain` where it is at hand.

    Where other programs of the run rely on where the state lies, it stays there.
    """
    problem = placer.problem
    if chain is None and not problem.state.outside:
        chain = ChainStrategy(placer)
    recomputation = Recomputation.COST_AWARE if _has_loss(placer) else None
    return OffloadStrategy(placer, name, recomputation=recomputation, streams=not problem.fixed_state, chain=chain)


def _has_loss(placer: Placer) -> bool:
    return any(op.phase is Phase.LOSS for op in placer.problem.graph.ops)


OFFLOAD = StrategyKind(
    "offload",
    _make_offload,
    link=LinkUse.REQUIRED,
    without_backward=True,
    read_detail=_read_rule,
    details=("lru",),
)
SUPERNEURONS = tuple(
    StrategyKind(name, partial(_make_superneurons, recomputation), link=LinkUse.REQUIRED, read_detail=_read_rule)
    for name, recomputation in (
        ("superneurons", Recomputation.COST_AWARE),
        ("superneurons-speed", Recomputation.SPEED_CENTRIC),
        ("superneurons-memory", Recomputation.MEMORY_CENTRIC),
    )
)
STREAM = StrategyKind("stream", make_stream, link=LinkUse.REQUIRED, least_with_link=True, read_detail=_read_rule)
