"""All kinds of operation, by name: those of the package, gathered from the files that declare them, and those added.

`bathyal.register_operation` adds a kind together with the kernels of the numpy backend.
"""

from __future__ import annotations

from ..memory.errors import GraphError
from ..memory.registry import Registry
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

KINDS: Registry[OpKind] = Registry(
    "kind of operation",
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
    },
    "bt.unregister_operation({})",
)

NO_INPLACE = "no_inplace"
"""Attribute of an operation that a backend computes by what promises nothing where outputs lie over inputs."""


def kind_of(op: Op) -> OpKind:
    """Return the declaration of an operation's kind.

    Raises:
        GraphError: there is none of that name; says which layer the operation comes from.
    """
    kind = KINDS.get(op.kind)
    if kind is None:
        hint = "Register it with bathyal.register_operation before the network is built."
        raise GraphError(f"{op.name} ({op.kind})", "an operation of a registered kind", repr(op.kind), hint)
    return kind


def inplace_pairs(op: Op) -> tuple[tuple[int, int], ...]:
    """Return the pairs (output, input) of an operation whose memory may be shared where the input dies there."""
    return () if op.attrs.get(NO_INPLACE) else KINDS[op.kind].inplace
