"""Batch normalization by the running statistics, and their update; what needs the batch's own statistics is cuDNN's.

In this backend the tensor called `var` that a batch norm makes in training holds what cuDNN leaves: the inverse
standard deviation 1 / √(var + eps). The update turns it back, for which it needs the attribute `eps`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from .kernel_program import KernelProgram, choose_pack, elements, image_type, launch_items, pointers, require_float32
from .op_request import OpRequest


def _update(request: OpRequest) -> KernelProgram:
    require_float32(request, *request.inputs)
    attrs = request.attrs
    channels, momentum, count = elements(request.inputs[0]), attrs["momentum"], attrs["count"]
    shares = (1.0 - momentum, momentum, momentum * count / (count - 1))
    scalars = (np.int64(channels), np.float64(attrs["eps"]), *(np.float64(s) for s in shares))
    return KernelProgram((launch_items("batch_norm_update", channels, pointers(0, 1, 2, 3), *scalars),))


def _inference(function: str) -> Callable[[OpRequest], KernelProgram]:
    def program(request: OpRequest) -> KernelProgram:
        x, weight, bias, mean, var = request.inputs
        element = image_type(request, x, *request.outputs)
        require_float32(request, weight, bias, mean, var)
        channels, count = x.spec.shape[1], elements(x)
        name, pack = choose_pack(function, element, channels)
        scale = 6
        sizes = (np.int64(count), np.int64(channels))
        return KernelProgram(
            (
                launch_items(
                    "batch_norm_scale",
                    channels,
                    pointers(1, 4, scale),
                    np.int64(channels),
                    np.float64(request.attrs["eps"]),
                ),
                launch_items(name, count // pack, pointers(0, 3, scale, 2, 5), *sizes),
            ),
            channels * 4,
        )

    return program


RUNNING_STATISTICS: Mapping[str, Callable[[OpRequest], KernelProgram]] = MappingProxyType(
    {
        "batch_norm_update": _update,
        "batch_norm_inference": _inference("batch_norm"),
        "batch_norm_relu_inference": _inference("batch_norm_relu"),
    }
)
"""By kind; the inference may run in place, the running statistics are overwritten."""
