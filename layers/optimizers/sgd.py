"""Stochastic gradient descent: its declaration and that of its update operation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from types import MappingProxyType
from typing import ClassVar

from ...memory.arguments import Argument, Number, Switch, read_fields
from ...memory.errors import ConfigError
from ..operations import Attrs, OpKind, Specs
from ..pytorch_spelling import refuse_pytorch_spelling
from .optimizer import RATE


def _flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    return 6.0 * math.prod(inputs[0].shape)


SGD_UPDATE = OpKind("sgd_update", flops=_flops, flat=True)
KINDS = (SGD_UPDATE,)
ARGUMENTS: Mapping[str, Argument] = MappingProxyType(
    {
        "learning_rate": RATE,
        "momentum": Number(0, 1, without_most=True),
        "weight_decay": Number(0),
        "nesterov": Switch(),
    }
)
PYTORCH = ("learning_rate", "momentum", "dampening", "weight_decay", "nesterov")
"""PyTorch's order of what follows after the parameters."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum, as PyTorch defines it.

    g ← gradient + weight_decay · w;  v ← momentum · v + g;  w ← w − learning_rate · (g + momentum · v if nesterov,
    else v). Without momentum v is g and is not stored.

    Attributes:
        learning_rate: may be changed from step to step.
        momentum: 0 stores no velocity.
        weight_decay: applied to every parameter.
        nesterov: needs momentum.
    """

    kind: ClassVar[str] = SGD_UPDATE.name
    learning_rate: float = 0.1
    _: KW_ONLY
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __new__(cls, *given: object, **named: object) -> SGD:
        """Refuse a call in PyTorch's order, which begins with the parameters."""
        order = PYTORCH if not given or isinstance(given[0], Real) else ("params", *PYTORCH)
        refuse_pytorch_spelling(cls, order, given, named)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        read_fields(self, ARGUMENTS, "SGD")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("SGD", "momentum above 0 with nesterov", "momentum=0")

    @property
    def attrs(self) -> Mapping[str, object]:
        """What is fixed in the update operations; the learning rate is a step scalar."""
        return {"momentum": self.momentum, "weight_decay": self.weight_decay, "nesterov": self.nesterov}

    @property
    def slots(self) -> Mapping[str, float]:
        """The velocity v, which starts at 0; none without momentum."""
        return MappingProxyType({"momentum": 0.0} if self.momentum else {})

    def step_scalars(self, step: int, learning_rate: float) -> Mapping[str, float]:
        """None beside the learning rate."""
        return MappingProxyType({})
