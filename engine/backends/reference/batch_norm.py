"""Batch normalization.

Statistics and the sums of the gradient are taken in float64: first the mean, then the variance of the centred values
(two passes, so that a large mean costs no digits). The output is computed from mean and variance as they were stored,
so that a repeated run, which only reads them, gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ....layers.graph import TensorSpec
from .blocks import Blocks, add_sums, channel_blocks, channel_sums, view_like
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec, float64, store


def _flat(x: Array) -> Array:
    """View images as (N, C, H · W)."""
    return x.reshape(x.shape[0], x.shape[1], -1)


def _blocks(op: OpSpec) -> tuple[int, Blocks, int]:
    """Return the elements of the largest block, the blocks, and the values per channel."""
    images, channels, *image = op.inputs[0].shape
    pixels = math.prod(image)
    return (*channel_blocks(images, channels, pixels), images * pixels)


def _inverse_deviation(var: Array, eps: float, out: Array) -> None:
    """Out ← 1 / √(var + eps), in float64."""
    np.copyto(out, var)
    np.add(out, eps, out=out)
    np.sqrt(out, out=out)
    np.divide(1.0, out, out=out)


def _normalize(
    blocks: Blocks,
    eps: float,
    *,
    x: Array,
    weight: Array,
    bias: Array,
    mean: Array,
    var: Array,
    y: Array,
    wide: Array,
    scale: Array,
) -> None:
    """Y ← (x − mean) · weight / √(var + eps) + bias; `wide` (float64) and `scale` are scratch of shape (C,)."""
    _inverse_deviation(var, eps, wide)
    np.multiply(wide, weight, out=wide)
    store(scale, wide)
    source, target = _flat(x), _flat(y)
    for block in blocks:
        c, made = block[1], target[block]
        np.subtract(source[block], mean[c, None], out=made)
        np.multiply(made, scale[c, None], out=made)
        np.add(made, bias[c, None], out=made)


def _training(op: OpSpec) -> tuple[NumpyKernel, ...]:
    elements, blocks, count = _blocks(op)
    eps, channels = op.attrs["eps"], op.inputs[0].shape[1]

    def repeat(*arrays: Array) -> None:
        x, weight, bias, y, mean, var, _buffer, _centre, total, _part, scale = arrays
        _normalize(blocks, eps, x=x, weight=weight, bias=bias, mean=mean, var=var, y=y, wide=total, scale=scale)

    def run(*arrays: Array) -> None:
        x, _weight, _bias, _y, mean, var, buffer, centre, total, part, _scale = arrays
        flat = _flat(x)
        channel_sums(flat, blocks, buffer, centre, part)
        np.divide(centre, count, out=centre)
        store(mean, centre)
        total.fill(0)
        for block in blocks:
            c, values = block[1], flat[block]
            centred = view_like(buffer, values)
            np.copyto(centred, values)
            np.subtract(centred, centre[c, None], out=centred)
            np.multiply(centred, centred, out=centred)
            add_sums(centred, total[c], part[c])
        np.divide(total, count, out=total)
        store(var, total)
        repeat(*arrays)

    vectors = (float64(channels),) * 3
    return (NumpyKernel("blocks", run, (float64(elements), *vectors, TensorSpec((channels,), op.dtype)), repeat),)


def _inference(op: OpSpec) -> tuple[NumpyKernel, ...]:
    _, blocks, _ = _blocks(op)
    eps, channels = op.attrs["eps"], op.inputs[0].shape[1]

    def run(x: Array, weight: Array, bias: Array, mean: Array, var: Array, y: Array, wide: Array, scale: Array) -> None:
        _normalize(blocks, eps, x=x, weight=weight, bias=bias, mean=mean, var=var, y=y, wide=wide, scale=scale)

    return (NumpyKernel("blocks", run, (float64(channels), TensorSpec((channels,), op.dtype))),)


def _backward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    """Dx = weight / σ · (dy − Σ dy / n − (x − mean) / σ² · Σ dy (x − mean) / n), with n values per channel."""
    elements, blocks, count = _blocks(op)
    eps, channels = op.attrs["eps"], op.inputs[0].shape[1]

    def run(*operands: Array) -> None:
        inputs, outputs, scratch = operands[:5], operands[5:8], operands[8:]
        x, dy, weight, mean, var = inputs
        dx, dw, db = outputs
        values, gradients, inverse, products, sums, part, slope, shift, scale = scratch
        source, above, below = _flat(x), _flat(dy), _flat(dx)
        products.fill(0)
        sums.fill(0)
        for block in blocks:
            c, found = block[1], source[block]
            centred, gradient = view_like(values, found), view_like(gradients, found)
            np.copyto(centred, found)
            np.subtract(centred, mean[c, None], out=centred)
            np.copyto(gradient, above[block])
            add_sums(gradient, sums[c], part[c])
            np.multiply(centred, gradient, out=centred)
            add_sums(centred, products[c], part[c])
        _inverse_deviation(var, eps, inverse)
        store(db, sums)
        np.multiply(products, inverse, out=products)
        store(dw, products)
        np.divide(sums, count, out=sums)
        store(shift, sums)
        np.multiply(products, inverse, out=products)
        np.divide(products, -count, out=products)
        store(slope, products)
        np.multiply(inverse, weight, out=inverse)
        store(scale, inverse)
        narrow = values.view(x.dtype)
        for block in blocks:
            c, found = block[1], source[block]
            made = view_like(narrow, found)
            np.subtract(found, mean[c, None], out=made)
            np.multiply(made, slope[c, None], out=made)
            np.add(made, above[block], out=made)
            np.subtract(made, shift[c, None], out=made)
            np.multiply(made, scale[c, None], out=below[block])

    wide, narrow = (float64(channels),) * 4, (TensorSpec((channels,), op.dtype),) * 3
    return (NumpyKernel("blocks", run, (float64(elements), float64(elements), *wide, *narrow)),)


def _update(op: OpSpec) -> tuple[NumpyKernel, ...]:
    """Running ← (1 − momentum) · running + momentum · batch, the variance unbiased: times n / (n − 1)."""
    (channels,) = op.inputs[0].shape
    momentum, count = op.attrs["momentum"], op.attrs["count"]

    def move(batch: Array, running: Array, share: float, new: Array, old: Array) -> None:
        np.copyto(new, batch)
        np.multiply(new, share, out=new)
        np.copyto(old, running)
        np.multiply(old, 1.0 - momentum, out=old)
        np.add(old, new, out=old)
        store(running, old)

    def run(mean: Array, var: Array, running_mean: Array, running_var: Array, new: Array, old: Array) -> None:
        move(mean, running_mean, momentum, new, old)
        move(var, running_var, momentum * count / (count - 1), new, old)

    return (NumpyKernel("vector", run, (float64(channels), float64(channels))),)


BATCH_NORM: Mapping[str, Implementation] = MappingProxyType(
    {
        "batch_norm_training": _training,
        "batch_norm_inference": _inference,
        "batch_norm_backward": _backward,
        "batch_norm_update": _update,
    }
)
