"""Local response normalization across channels: y = x / d^beta with d = k + alpha / size · Σ x² over `size` channels.

The window of channel c reaches from c − size // 2 to c + (size − 1) // 2, as in PyTorch. Works through one image and
some of its pixels at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ....layers.graph import TensorSpec
from .blocks import BUFFER_ELEMENTS, Spans, view_like
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec

LEAST_PIXELS = 64
"""Pixels taken at a time however many channels there are: shorter rows would make numpy's loops slow."""


def _tiles(op: OpSpec) -> tuple[TensorSpec, int, Spans]:
    """Return a scratch array that holds any tile, the number of images, and the pixels of the tiles of each."""
    images, channels, *image = op.inputs[0].shape
    pixels = math.prod(image)
    step = min(pixels, max(LEAST_PIXELS, BUFFER_ELEMENTS // channels))
    return TensorSpec((channels * step,), op.dtype), images, Spans(pixels, step)


def _flat(x: Array) -> Array:
    """View images as (N, C, H · W)."""
    return x.reshape(x.shape[0], x.shape[1], -1)


def _window_sums(source: Array, target: Array, before: int, after: int) -> None:
    """target[c] ← Σ source[c − before … c + after] along the first axis."""
    channels = source.shape[0]
    np.copyto(target, source)
    for shift in range(1, min(before, channels - 1) + 1):
        np.add(target[shift:], source[:-shift], out=target[shift:])
    for shift in range(1, min(after, channels - 1) + 1):
        np.add(target[:-shift], source[shift:], out=target[:-shift])


def _denominators(op: OpSpec, values: Array, squares: Array, out: Array) -> None:
    """Out ← k + alpha / size · Σ values² over the window."""
    size = op.attrs["size"]
    np.multiply(values, values, out=squares)
    _window_sums(squares, out, size // 2, (size - 1) // 2)
    np.multiply(out, op.attrs["alpha"] / size, out=out)
    np.add(out, op.attrs["k"], out=out)


def _forward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    spec, images, spans = _tiles(op)
    beta = op.attrs["beta"]

    def run(x: Array, y: Array, squares: Array, denominators: Array) -> None:
        source, target = _flat(x), _flat(y)
        for image, pixels in itertools.product(range(images), spans):
            values = source[image, :, pixels]
            divisor = view_like(denominators, values)
            _denominators(op, values, view_like(squares, values), divisor)
            np.power(divisor, beta, out=divisor)
            np.divide(values, divisor, out=target[image, :, pixels])

    return (NumpyKernel("tiles", run, (spec, spec)),)


def _backward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    """dx_j = dy_j d_j^−β − 2αβ/size · x_j Σ dy_c x_c d_c^(−β−1), over the channels c whose window holds j."""
    spec, images, spans = _tiles(op)
    beta, size = op.attrs["beta"], op.attrs["size"]
    factor = 2.0 * op.attrs["alpha"] * beta / size

    def run(x: Array, dy: Array, dx: Array, first: Array, second: Array, third: Array) -> None:
        source, above, below = _flat(x), _flat(dy), _flat(dx)
        for image, pixels in itertools.product(range(images), spans):
            values, gradient = source[image, :, pixels], above[image, :, pixels]
            terms, divisor, power = (view_like(scratch, values) for scratch in (first, second, third))
            _denominators(op, values, terms, divisor)
            np.power(divisor, -beta, out=power)
            np.multiply(gradient, values, out=terms)
            np.multiply(terms, power, out=terms)
            np.divide(terms, divisor, out=terms)
            sums = divisor
            _window_sums(terms, sums, (size - 1) // 2, size // 2)
            np.multiply(sums, values, out=sums)
            np.multiply(sums, factor, out=sums)
            np.multiply(power, gradient, out=power)
            np.subtract(power, sums, out=below[image, :, pixels])

    return (NumpyKernel("tiles", run, (spec, spec, spec)),)


RESPONSE_NORM: Mapping[str, Implementation] = MappingProxyType({"lrn": _forward, "lrn_backward": _backward})
