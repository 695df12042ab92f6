"""Two-dimensional convolution by matrix products.

A 1×1 convolution over every pixel is a product as it stands ("direct"); all others go through the columns of
`columns.py`. Per image and group: y = W · columns; columns' = Wᵀ · dy, added back into the image tap by tap in row
order, a span of filters at a time; dW = Σ dy · columnsᵀ in the order of the images. The gradient of the bias is summed
in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from ....layers.graph import TensorSpec
from .blocks import Spans, channel_blocks, channel_sums
from .columns import Tiling, tilings
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec, float64, store
from .products import SPAN, part_of, product
from .windows import Windows, convolution_windows


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Sizes of a convolution, from the specs of its image and its weight."""

    windows: Windows
    images: int
    channels: int
    groups: int
    filters: int
    dtype: str

    @property
    def depth(self) -> int:
        """Rows of the columns of one group."""
        return self.channels // self.groups * math.prod(self.windows.kernel)

    @property
    def filter_depth(self) -> int:
        """Filters of one group, which the gradient of the image sums over."""
        return self.filters // self.groups

    @property
    def tilings(self) -> tuple[Tiling, ...]:
        return tilings(self.windows, self.images, self.channels, self.groups, self.dtype)

    def weight(self, weight: Array) -> Array:
        """(groups, filters / groups, depth)."""
        return weight.reshape(self.groups, self.filters // self.groups, self.depth)

    def image_matrix(self, x: Array) -> Array:
        """(N, groups, C / groups, H · W)."""
        return x.reshape(self.images, self.groups, self.channels // self.groups, -1)

    def output_matrix(self, y: Array) -> Array:
        """(N, groups, filters / groups, H' · W')."""
        return y.reshape(self.images, self.groups, self.filters // self.groups, -1)


def _geometry(x: TensorSpec, weight: TensorSpec, op: OpSpec) -> _Geometry:
    images, channels, height, width = x.shape
    windows = convolution_windows((height, width), (weight.shape[2], weight.shape[3]), op.attrs)
    return _Geometry(windows, images, channels, op.attrs["groups"], weight.shape[0], x.dtype)


def _forward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    geometry = _geometry(op.inputs[0], op.inputs[1], op)
    bias = len(op.inputs) == 3
    if geometry.windows.pointwise:
        part = part_of((geometry.filters, math.prod(geometry.windows.output)), geometry.depth, geometry.dtype)
        return (NumpyKernel("direct", partial(_run_direct, geometry, bias), (part,)),)
    return tuple(
        NumpyKernel(
            tiling.name,
            partial(_run_forward, geometry, tiling, bias),
            (
                tiling.frame,
                tiling.columns,
                part_of((tiling.images.longest, geometry.filters, tiling.pixels), geometry.depth, geometry.dtype),
            ),
        )
        for tiling in geometry.tilings
    )


def _add_bias(geometry: _Geometry, y: Array, bias: Array) -> None:
    np.add(y, bias.reshape(geometry.groups, -1, 1), out=y)


def _run_direct(geometry: _Geometry, has_bias: bool, x: Array, weight: Array, *rest: Array) -> None:
    *bias, y, part = rest
    matrix = geometry.output_matrix(y)
    _multiply_images(geometry.weight(weight), geometry.image_matrix(x), matrix, part)
    if has_bias:
        _add_bias(geometry, matrix, bias[0])


def _multiply_images(a: Array, images: Array, out: Array, part: Array) -> None:
    """Out ← a · image for each image; with scratch for one image at a time where the depth is cut."""
    if a.shape[-1] <= SPAN:
        np.matmul(a, images, out=out)
        return
    for image, made in zip(images, out, strict=True):
        product(a, image, made, part)


def _run_forward(geometry: _Geometry, tiling: Tiling, has_bias: bool, x: Array, weight: Array, *rest: Array) -> None:
    *bias, y, frame, columns, part = rest
    filters, matrix = geometry.weight(weight), geometry.output_matrix(y)
    for images, strip, tile in tiling.gather(x, frame, columns):
        made = matrix[images, :, :, strip.pixels]
        product(filters, tile, made, part)
        if has_bias:
            _add_bias(geometry, made, bias[0])


def _backward_data(op: OpSpec) -> tuple[NumpyKernel, ...]:
    geometry = _geometry(op.outputs[0], op.inputs[1], op)
    if geometry.windows.pointwise:
        part = part_of((geometry.channels, math.prod(geometry.windows.image)), geometry.filter_depth, geometry.dtype)
        return (NumpyKernel("direct", partial(_run_direct_data, geometry), (part,)),)
    return tuple(
        NumpyKernel(tiling.name, partial(_run_data, geometry, tiling), (tiling.columns,)) for tiling in geometry.tilings
    )


def _run_direct_data(geometry: _Geometry, dy: Array, weight: Array, dx: Array, part: Array) -> None:
    filters = geometry.weight(weight).swapaxes(1, 2)
    _multiply_images(filters, geometry.output_matrix(dy), geometry.image_matrix(dx), part)


def _run_data(geometry: _Geometry, tiling: Tiling, dy: Array, weight: Array, dx: Array, columns: Array) -> None:
    filters, gradient = geometry.weight(weight).swapaxes(1, 2), geometry.output_matrix(dy)
    dx.fill(0)
    for strip in tiling.strips:
        taps = tiling.column_taps(strip, columns)
        matrix = tiling.column_matrix(taps)
        for images, span in itertools.product(tiling.images, Spans(geometry.filter_depth, SPAN)):
            count = images.stop - images.start
            np.matmul(filters[:, :, span], gradient[images, :, span, strip.pixels], out=matrix[:count])
            below, made = dx[images], taps[:count]
            for tap in strip.taps:
                pixels = below[:, :, tap.inputs[0], tap.inputs[1]]
                np.add(pixels, made[:, :, tap.row, tap.column, tap.outputs[0], tap.outputs[1]], out=pixels)


def _backward_weights(op: OpSpec) -> tuple[NumpyKernel, ...]:
    x, has_bias = op.inputs[0], len(op.outputs) == 2
    geometry = _geometry(x, op.outputs[0], op)
    product = TensorSpec((geometry.groups, geometry.filters // geometry.groups, geometry.depth), x.dtype)
    elements, blocks = channel_blocks(geometry.images, geometry.filters, math.prod(geometry.windows.output))
    sums = (float64(elements), *(float64(geometry.filters),) * 2) if has_bias else (float64(0),) * 3

    def variant(name: str, tiling: Tiling | None) -> NumpyKernel:
        def run(x: Array, dy: Array, dw: Array, *rest: Array) -> None:
            *db, one, frame, columns, buffer, total, part = rest
            if db:
                channel_sums(dy.reshape(geometry.images, geometry.filters, -1), blocks, buffer, total, part)
                store(db[0], total)
            gradient, filters = geometry.output_matrix(dy), geometry.weight(dw)
            begun = False
            for images, pixels, tile in _tiles(geometry, tiling, x, frame, columns):
                for image, matrix in zip(range(images.start, images.stop), tile, strict=True):
                    made = one if begun else filters
                    np.matmul(gradient[image, :, :, pixels], matrix.swapaxes(1, 2), out=made)
                    if begun:
                        np.add(filters, one, out=filters)
                    begun = True

        empty = TensorSpec((0,), x.dtype)
        return NumpyKernel(
            name, run, (product, *((empty, empty) if tiling is None else (tiling.frame, tiling.columns)), *sums)
        )

    if geometry.windows.pointwise:
        return (variant("direct", None),)
    return tuple(variant(tiling.name, tiling) for tiling in geometry.tilings)


def _tiles(
    geometry: _Geometry, tiling: Tiling | None, x: Array, frame: Array, columns: Array
) -> Iterator[tuple[slice, slice, Array]]:
    """Images, output pixels and columns of tile after tile; without a tiling the images are the columns."""
    if tiling is None:
        yield slice(0, geometry.images), slice(None), geometry.image_matrix(x)
        return
    for images, strip, tile in tiling.gather(x, frame, columns):
        yield images, strip.pixels, tile


CONVOLUTION: Mapping[str, Implementation] = MappingProxyType(
    {
        "conv2d": _forward,
        "conv2d_backward_data": _backward_data,
        "conv2d_backward_weights": _backward_weights,
    }
)
