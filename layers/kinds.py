"""The closed set of operation kinds, gathered from the files that declare them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    activation,
    convolution,
    dropout,
    linear,
    loss,
    merge,
    normalization,
    optimizer,
    pooling,
    shape,
)
from .operations import OpKind

KINDS: Mapping[str, OpKind] = MappingProxyType(
    {
        kind.name: kind
        for family in (
            activation,
            convolution,
            dropout,
            linear,
            loss,
            merge,
            normalization,
            optimizer,
            pooling,
            shape,
        )
        for kind in family.KINDS
    }
)
