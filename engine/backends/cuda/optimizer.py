"""Stochastic gradient descent, to the bit that of the CPU given the same gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from ....layers.step_scalars import LEARNING_RATE
from .kernel_program import (
    FLOAT32,
    KernelProgram,
    Pointer,
    elements,
    launch_flat,
    pointers,
    require,
    require_float32,
    same_order,
)
from .op_request import OpRequest


def _sgd(request: OpRequest) -> KernelProgram:
    *tensors, scalars = request.inputs
    require_float32(request, *tensors)
    require(scalars.spec.dtype == "float64", request, "float64 scalars")
    require(all(same_order(tensors[0], t) for t in tensors), request, "tensors of one shape and layout")
    attrs, count = request.attrs, elements(tensors[0])
    rate = Pointer(len(tensors), LEARNING_RATE * 8)
    operands = pointers(*range(len(tensors)), rate)
    decay = np.float32(attrs["weight_decay"])
    if len(tensors) == 2:
        return KernelProgram((launch_flat("sgd", FLOAT32, count, operands, decay),))
    rest = (np.float32(attrs["momentum"]), np.int32(attrs["nesterov"]))
    return KernelProgram((launch_flat("sgd_momentum", FLOAT32, count, operands, decay, *rest),))


OPTIMIZER: Mapping[str, Callable[[OpRequest], KernelProgram]] = MappingProxyType({"sgd_update": _sgd})
"""By kind; weight and velocity are overwritten."""
