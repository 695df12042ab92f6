"""Stochastic gradient descent: its declaration and that of its update operation."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from ...memory.errors import ConfigError
from ..operations import Attrs, OpKind, Specs


def _flops(inputs: Specs, outputs: Specs, attrs: Attrs) -> float:
    return 6.0 * math.prod(inputs[0].shape)


SGD_UPDATE = OpKind("sgd_update", flops=_flops, flat=True)
KINDS = (SGD_UPDATE,)


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
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        for name in ("learning_rate", "momentum", "weight_decay"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Real) or isinstance(value, bool):
                raise ConfigError("SGD", f"a number as {name}", repr(value))
        if not 0 <= self.momentum < 1:
            raise ConfigError("SGD", "momentum in [0, 1)", str(self.momentum))
        if not 0 <= self.weight_decay < math.inf or not 0 <= self.learning_rate < math.inf:
            found = f"learning_rate={self.learning_rate}, weight_decay={self.weight_decay}"
            raise ConfigError("SGD", "a finite learning rate and weight decay of at least 0", found)
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
