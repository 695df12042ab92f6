"""Which implementation serves which kind of operation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .activation import ACTIVATION
from .average_pooling import AVERAGE_POOLING
from .batch_norm import BATCH_NORM
from .convolution import CONVOLUTION
from .dropout import DROPOUT
from .linear import LINEAR
from .loss import LOSS
from .max_pooling import MAX_POOLING
from .merge import MERGE
from .numpy_kernel import Implementation
from .optimizer import OPTIMIZER
from .response_norm import RESPONSE_NORM

IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {
        **ACTIVATION,
        **AVERAGE_POOLING,
        **BATCH_NORM,
        **CONVOLUTION,
        **DROPOUT,
        **LINEAR,
        **LOSS,
        **MAX_POOLING,
        **MERGE,
        **OPTIMIZER,
        **RESPONSE_NORM,
    }
)
"""By kind; every kind that a training, evaluation or prediction graph can hold."""
