"""Two strategies as a program outside the package writes them: one computes again, one moves tensors out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import bathyal as bt
from bathyal.layers.graph import Graph, Phase, Role
from bathyal.layers.kinds import KINDS
from bathyal.scheduler.strategies import LinkUse, Move, Order, PlacedOrder, Placer, StrategyName, Transfer


class OneOrder(bt.Strategy):
    """Proposes one order whatever the budget."""

    def __init__(self, placer: Placer) -> None:
        self.placer = placer

    def order(self) -> Order:
        raise NotImplementedError

    def smallest(self) -> PlacedOrder:
        return self.placer.place_order(self.order())

    def fastest(self, budget_bytes: int) -> PlacedOrder | None:
        placed = self.smallest()
        return placed if placed.end <= budget_bytes else None


class RecomputeCheap(OneOrder):
    """Makes what the first K cheap operations make anew, right before the backward pass reads it for the first time."""

    def __init__(self, placer: Placer, most: int) -> None:
        super().__init__(placer)
        self.most = most

    @classmethod
    def make(cls, placer: Placer, name: StrategyName) -> RecomputeCheap:
        return cls(placer, sys.maxsize if name.detail is None else int(name.detail))

    def order(self) -> list[int]:
        graph = self.placer.problem.graph
        cheap = [op for op in graph.ops if op.phase is Phase.FORWARD and not op.updates and not KINDS[op.kind].heavy]
        maker = {t: op.id for op in cheap[: self.most] for t in op.outputs}
        order: list[int] = []
        repeated = set()
        for op in graph.ops:
            if op.phase is not Phase.FORWARD:
                for number in dict.fromkeys(maker[t] for t in op.inputs if t in maker):
                    if number not in repeated:
                        order.append(number)
                        repeated.add(number)
            order.append(op.id)
        return order


class MoveActivations(OneOrder):
    """Moves every activation out after its last use in the forward pass, and back before its first in the backward."""

    def order(self) -> Order:
        graph = self.placer.problem.graph
        order: list[int | Move] = []
        turn = next(op.id for op in graph.ops if op.phase is not Phase.FORWARD)
        moved = {t.id for t in graph.tensors if t.role is Role.ACTIVATION} & read(graph, turn, len(graph.ops))
        moved &= read(graph, 0, turn)
        away: set[int] = set()
        for op in graph.ops:
            used = [t for t in dict.fromkeys((*op.inputs, *op.outputs)) if t in moved]
            if op.id >= turn:
                for t in [t for t in used if t in away]:
                    order += [Move(Transfer.FETCH, t), Move(Transfer.WAIT, t)]
                    away.remove(t)
            order.append(op.id)
            for t in used:
                if op.id < turn and t not in read(graph, op.id + 1, turn):
                    order += [Move(Transfer.OFFLOAD, t), Move(Transfer.WAIT, t)]
                    away.add(t)
        return order


def read(graph: Graph, begin: int, end: int) -> set[int]:
    return {t for op in graph.ops[begin:end] for t in op.inputs}


def read_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise bt.ConfigError("strategy", f"{name}:K with a whole number K of operations", repr(f"{name}:{text}"))
    return int(text)


RECOMPUTE = bt.StrategyKind(
    "own-recompute-cheap", RecomputeCheap.make, natural_first=False, read_detail=read_number, details=("K",)
)
MOVE = bt.StrategyKind(
    "own-move-activations",
    lambda placer, name: MoveActivations(placer),
    link=LinkUse.REQUIRED,
    natural_first=False,
)


@contextmanager
def register_strategies(*kinds: bt.StrategyKind) -> Iterator[None]:
    for kind in kinds:
        bt.register_strategy(kind)
    try:
        yield
    finally:
        for kind in kinds:
            bt.unregister_strategy(kind.name)
