"""Concatenation, its undoing, changes of shape and of layout: copies, transposed where the channels change places.

A change of shape between images and rows, (N, C, H, W) and (N, C·H·W), is a change of layout too, because rows are in
plain C order; it moves nothing but whole tensors where both are the same bytes, and may run in place there alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from .program import (
    KernelCall,
    Pointer,
    Program,
    blocked,
    channels_last,
    each,
    elements,
    flat,
    packed,
    plain_alike,
    pointers,
    require,
    require_float,
)
from .request import CHANNELS_LAST, Operand, Request

TILE = 32
"""Rows and columns of the tile that is transposed at a time."""
FEW = 8
"""Rows or columns up to which a thread takes a whole column or row."""
_ITEMSIZE = 4


def _rows_and_width(shape: tuple[int, ...], last: bool) -> tuple[int, int]:
    """A tensor as rows that each hold all its channels: what is joined lies within a row."""
    return (shape[0] * shape[2] * shape[3], shape[1]) if last else (shape[0], math.prod(shape[1:]))


def _columns(request: Request, whole: Operand, parts: tuple[Operand, ...], whole_at: int, first: int) -> Program:
    """Copies between the whole tensor, operand `whole_at`, and its parts, operands from `first` on."""
    operands = (whole, *parts)
    require_float(request, *operands)
    last = all(channels_last(o) for o in operands)
    require(last or all(_images(o) is None for o in operands), request, "tensors of one layout")
    rows, total = _rows_and_width(whole.spec.shape, last)
    calls: list[KernelCall] = []
    begin = 0
    for position, part in enumerate(parts, first):
        _, width = _rows_and_width(part.spec.shape, last)
        function, pack = packed("copy_columns", total, begin, width)
        within, alone = (Pointer(whole_at, begin * _ITEMSIZE), total), (Pointer(position), width)
        (source, stride), (target, step) = (within, alone) if whole_at == 0 else (alone, within)
        sizes = (np.int64(rows), np.int64(width), np.int64(stride), np.int64(step))
        calls.append(each(function, rows * width // pack, pointers(source, target), *sizes))
        begin += width
    return Program(tuple(calls))


def _concat(request: Request) -> Program:
    return _columns(request, request.outputs[0], request.inputs, len(request.inputs), 0)


def _split(request: Request) -> Program:
    return _columns(request, request.inputs[0], request.outputs, 0, 1)


def moves_nothing(source: Operand, target: Operand) -> bool:
    """Whether a flatten, reshape or convert is a copy of the same bytes, which may run in place."""
    return (_images(source) is None and _images(target) is None) or _images(source) == _images(target)


def _images(operand: Operand) -> tuple[int, ...] | None:
    """The shape, where the elements are not in plain C order."""
    shape = operand.spec.shape
    return shape if operand.layout == CHANNELS_LAST and not plain_alike(shape) else None


def _transpose(images: int, rows: int, columns: int) -> KernelCall:
    """The launch that makes (images, columns, rows) of (images, rows, columns)."""
    sizes = (np.int64(images), np.int64(rows), np.int64(columns))
    if rows <= FEW:
        return each("transpose_few_rows", images * columns, pointers(0, 1), *sizes)
    if columns <= FEW:
        return each("transpose_few_columns", images * rows, pointers(0, 1), *sizes)
    return blocked("transpose", images * -(-rows // TILE) * -(-columns // TILE), pointers(0, 1), *sizes)


def _change(request: Request) -> Program:
    (x,), (y,) = request.inputs, request.outputs
    require_float(request, x, y)
    if moves_nothing(x, y):
        return Program((flat("copy_flat", elements(x), pointers(0, 1)),))
    require(_images(x) is None or _images(y) is None, request, "one shape, where both are channels-last")
    images, channels, height, width = _images(x) or y.spec.shape
    pixels = height * width
    rows, columns = (pixels, channels) if _images(x) else (channels, pixels)
    return Program((_transpose(images, rows, columns),))


MOVEMENT: Mapping[str, Callable[[Request], Program]] = MappingProxyType(
    {"concat": _concat, "split": _split, "flatten": _change, "reshape": _change, "convert": _change}
)
"""By kind."""
