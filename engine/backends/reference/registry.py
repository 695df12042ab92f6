"""Which numpy kernels serve which kind of operation; `bathyal.register_operation` adds those of a new kind."""

from __future__ import annotations

from ....memory.registry import Registry
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

IMPLEMENTATIONS: Registry[Implementation] = Registry(
    "numpy kernels of a kind of operation",
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
    },
    "bt.unregister_operation({})",
)
"""By kind. Every kind that a training, evaluation or prediction graph can hold has an implementation here."""
