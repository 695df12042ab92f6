"""Max, average and global average pooling of channels-last images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from .channel_sums import channel_means
from .kernel_program import (
    KernelProgram,
    Scalar,
    channels_last,
    choose_pack,
    elements,
    image_type,
    launch_items,
    pointers,
    require,
)
from .op_request import Operand, OpRequest


def _window(request: OpRequest, image: Operand, pooled: Operand) -> tuple[Scalar, ...]:
    attrs = request.attrs
    sizes = (*image.spec.shape[1:], *pooled.spec.shape[2:], *attrs["kernel"], *attrs["stride"], *attrs["padding"])
    return tuple(np.int32(size) for size in sizes)


def _pool(request: OpRequest, function: str, image: Operand, pooled: Operand, *more: Scalar) -> KernelProgram:
    """A launch with one item per pack of channels of the output."""
    name, pack = choose_pack(function, image_type(request, image, pooled), image.spec.shape[1])
    items = elements(request.outputs[0]) // pack
    operands = pointers(*range(len(request.inputs) + len(request.outputs)))
    return KernelProgram(
        (launch_items(name, items, operands, np.int64(items), *_window(request, image, pooled), *more),)
    )


def _max(request: OpRequest) -> KernelProgram:
    x, (y, index) = request.inputs[0], request.outputs
    return _pool(request, f"max_pool_{_index(request, index)}", x, y)


def _max_backward(request: OpRequest) -> KernelProgram:
    (dy, index), (dx,) = request.inputs, request.outputs
    return _pool(request, f"max_pool_backward_{_index(request, index)}", dx, dy)


def _index(request: OpRequest, index: Operand) -> str:
    right = index.spec.dtype in ("uint8", "int32") and channels_last(index)
    require(right, request, "a channels-last index of uint8 or int32")
    return index.spec.dtype


def _average(request: OpRequest) -> KernelProgram:
    counted = np.int32(request.attrs["count_include_pad"])
    return _pool(request, "avg_pool", request.inputs[0], request.outputs[0], counted)


def _average_backward(request: OpRequest) -> KernelProgram:
    counted = np.int32(request.attrs["count_include_pad"])
    return _pool(request, "avg_pool_backward", request.outputs[0], request.inputs[0], counted)


def _global(request: OpRequest) -> KernelProgram:
    (x,), (y,) = request.inputs, request.outputs
    element = image_type(request, x, y)
    images, channels, height, width = x.spec.shape
    return channel_means(images, height * width, channels, element, element)


def _global_backward(request: OpRequest) -> KernelProgram:
    (dy,), (dx,) = request.inputs, request.outputs
    element = image_type(request, dy, dx)
    _, channels, height, width = dx.spec.shape
    name, pack = choose_pack("global_avg_pool_backward", element, channels)
    sizes = (np.int64(elements(dx)), np.int64(height * width), np.int64(channels))
    return KernelProgram((launch_items(name, elements(dx) // pack, pointers(0, 1), *sizes),))


POOLING: Mapping[str, Callable[[OpRequest], KernelProgram]] = MappingProxyType(
    {
        "max_pool": _max,
        "max_pool_backward": _max_backward,
        "avg_pool": _average,
        "avg_pool_backward": _average_backward,
        "global_avg_pool": _global,
        "global_avg_pool_backward": _global_backward,
    }
)
"""By kind."""
