"""The closed set of operation kinds, gathered from the files that declare them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    activation,
    convolution,
    dropout,
    linear,
    merge,
    normalization,
    pooling,
    shape,
)
from .graph import Op
from .losses import cross_entropy
from .operations import OpKind
from .optimizers import sgd

KINDS: Mapping[str, OpKind] = MappingProxyType(
    {
        kind.name: kind
        for family in (
            activation,
            convolution,
            dropout,
            linear,
            cross_entropy,
            merge,
            normalization,
            sgd,
            pooling,
            shape,
        )
        for kind in family.KINDS
    }
)

NO_INPLACE = "apart"
"""Attribute of an operation that a backend computes by what promises nothing where outputs lie over inputs."""


def overwritten(op: Op) -> tuple[tuple[int, int], ...]:
    """Pairs (output, input) of an operation whose memory may be shared where the input dies there."""
    return () if op.attrs.get(NO_INPLACE) else KINDS[op.kind].inplace
