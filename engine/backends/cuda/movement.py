"""Concatenation, its undoing, changes of shape and of layout: copies, transposed where the channels change places.

A change of shape between images and rows, (N, C, H, W) and (N, C·H·W), is a change of layout too, because rows are in
plain C order; it moves nothing but whole tensors where both are the same bytes, and may run in place there alone.
Where the element type changes too, the same kernels round or widen on the way, and nothing may run in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from .kernel_program import (
    KernelCall,
    KernelProgram,
    Pointer,
    channels_last,
    choose_pack,
    conversion_suffix,
    element_type,
    elements,
    launch_blocks,
    launch_items,
    plain_alike,
    pointers,
    require,
)
from .op_request import CHANNELS_LAST, Operand, OpRequest

TILE = 32
"""Rows and columns of the tile that is transposed at a time."""
FEW = 8
"""Rows or columns up to which a thread takes a whole column or row."""


def _rows_and_width(shape: tuple[int, ...], last: bool) -> tuple[int, int]:
    """A tensor as rows that each hold all its channels: what is joined lies within a row."""
    return (shape[0] * shape[2] * shape[3], shape[1]) if last else (shape[0], math.prod(shape[1:]))


def _columns(
    request: OpRequest, whole: Operand, parts: tuple[Operand, ...], whole_at: int, first: int
) -> KernelProgram:
    """Copies between the whole tensor, operand `whole_at`, and its parts, operands from `first` on."""
    operands = (whole, *parts)
    element = element_type(request, *operands)
    last = all(channels_last(o) for o in operands)
    require(last or all(_images(o) is None for o in operands), request, "tensors of one layout")
    rows, total = _rows_and_width(whole.spec.shape, last)
    calls: list[KernelCall] = []
    begin = 0
    for position, part in enumerate(parts, first):
        _, width = _rows_and_width(part.spec.shape, last)
        function, pack = choose_pack("copy_columns", element, total, begin, width)
        within, alone = (Pointer(whole_at, begin * element.nbytes), total), (Pointer(position), width)
        (source, stride), (target, step) = (within, alone) if whole_at == 0 else (alone, within)
        sizes = (np.int64(rows), np.int64(width), np.int64(stride), np.int64(step))
        calls.append(launch_items(function, rows * width // pack, pointers(source, target), *sizes))
        begin += width
    return KernelProgram(tuple(calls))


def _concat(request: OpRequest) -> KernelProgram:
    return _columns(request, request.outputs[0], request.inputs, len(request.inputs), 0)


def _split(request: OpRequest) -> KernelProgram:
    return _columns(request, request.inputs[0], request.outputs, 0, 1)


def _one_order(source: Operand, target: Operand) -> bool:
    """Whether the elements of a flatten, reshape or convert lie in the same order before and after."""
    return (_images(source) is None and _images(target) is None) or _images(source) == _images(target)


def _images(operand: Operand) -> tuple[int, ...] | None:
    """The shape, where the elements are not in plain C order."""
    shape = operand.spec.shape
    return shape if operand.layout == CHANNELS_LAST and not plain_alike(shape) else None


def _transpose(suffix: str, images: int, rows: int, columns: int) -> KernelCall:
    """The launch that makes (images, columns, rows) of (images, rows, columns)."""
    sizes = (np.int64(images), np.int64(rows), np.int64(columns))
    if rows <= FEW:
        return launch_items("transpose_few_rows" + suffix, images * columns, pointers(0, 1), *sizes)
    if columns <= FEW:
        return launch_items("transpose_few_columns" + suffix, images * rows, pointers(0, 1), *sizes)
    tiles = images * -(-rows // TILE) * -(-columns // TILE)
    return launch_blocks("transpose" + suffix, tiles, pointers(0, 1), *sizes)


def _change(request: OpRequest) -> KernelProgram:
    (x,), (y,) = request.inputs, request.outputs
    source, target = element_type(request, x), element_type(request, y)
    suffix = conversion_suffix(source, target)
    if _one_order(x, y):
        pack = max(source.packs[0], target.packs[0])
        count = elements(x)
        return KernelProgram((launch_items("copy_flat" + suffix, -(-count // pack), pointers(0, 1), np.int64(count)),))
    require(_images(x) is None or _images(y) is None, request, "one shape, where both are channels-last")
    images, channels, height, width = _images(x) or y.spec.shape
    pixels = height * width
    rows, columns = (pixels, channels) if _images(x) else (channels, pixels)
    return KernelProgram((_transpose(suffix, images, rows, columns),))


MOVEMENT: Mapping[str, Callable[[OpRequest], KernelProgram]] = MappingProxyType(
    {"concat": _concat, "split": _split, "flatten": _change, "reshape": _change, "convert": _change}
)
"""By kind."""
