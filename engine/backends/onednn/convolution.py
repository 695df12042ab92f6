"""Recipes of convolutions; the descriptors are also asked for the layouts that the library would choose."""

from __future__ import annotations

from ....layers.operations import Attrs
from .handles import (
    BIAS,
    DIFF_BIAS,
    DIFF_SOURCE,
    DIFF_TARGET,
    DIFF_WEIGHTS,
    SOURCE,
    TARGET,
    WEIGHTS,
    Descriptor,
    Engine,
    PrimitiveDescriptor,
    dimensions,
)
from .recipe import TRAINING, PrimitiveRequest, Recipe, overhang

AUTO = 3
"""The algorithm that the library thinks best."""


def group_shape(weight: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """The shape that the library gives a weight (out, in / groups, kh, kw): with an axis for the groups if several."""
    return weight if groups == 1 else (groups, weight[0] // groups, *weight[1:])


def convolution_geometry(
    image: tuple[int, ...], output: tuple[int, ...], kernel: tuple[int, ...], attrs: Attrs
) -> tuple[object, object, object, object]:
    """Strides, dilations (0 is none), padding before and after, as the library takes them."""
    stride, padding, dilation = attrs["stride"], attrs["padding"], attrs["dilation"]
    after = [overhang(image[2 + a], output[2 + a], kernel[a], stride[a], padding[a], dilation[a]) for a in (0, 1)]
    return dimensions(stride), dimensions([d - 1 for d in dilation]), dimensions(padding), dimensions(after)


def convolution_forward(
    engine: Engine, x: Descriptor, weight: Descriptor, bias: Descriptor | None, y: Descriptor, attrs: Attrs
) -> PrimitiveDescriptor:
    """The forward descriptor, which backward ones need as a hint."""
    geometry = convolution_geometry(x.shape, y.shape, weight.shape[-2:], attrs)
    return engine.describe("convolution_forward", TRAINING, AUTO, x, weight, bias, y, *geometry, engine.attributes)


def conv2d(r: PrimitiveRequest) -> Recipe:
    """The recipe of a convolution."""
    bias = r.inputs[2].layout if len(r.inputs) == 3 else None
    x, weight, y = r.inputs[0].layout, r.inputs[1].layout, r.outputs[0].layout
    arguments = {SOURCE: 0, WEIGHTS: 1, TARGET: len(r.inputs)} | ({BIAS: 2} if bias else {})
    return Recipe(convolution_forward(r.engine, x, weight, bias, y, r.attrs), arguments)


def convolution_backward_data(
    engine: Engine, dx: Descriptor, weight: Descriptor, dy: Descriptor, attrs: Attrs
) -> PrimitiveDescriptor:
    """The descriptor of the gradient of the image."""
    hint = convolution_forward(engine, dx, engine.describe_undecided(weight.shape), None, dy, attrs)
    geometry = convolution_geometry(dx.shape, dy.shape, weight.shape[-2:], attrs)
    return engine.describe("convolution_backward_data", AUTO, dx, weight, dy, *geometry, hint, engine.attributes)


def conv2d_backward_data(r: PrimitiveRequest) -> Recipe:
    """The recipe of the gradient of the image."""
    dy, weight, dx = r.inputs[0].layout, r.inputs[1].layout, r.outputs[0].layout
    made = convolution_backward_data(r.engine, dx, weight, dy, r.attrs)
    return Recipe(made, {DIFF_TARGET: 0, WEIGHTS: 1, DIFF_SOURCE: 2})


def convolution_backward_weights(
    engine: Engine, x: Descriptor, dw: Descriptor, db: Descriptor | None, dy: Descriptor, attrs: Attrs
) -> PrimitiveDescriptor:
    """The descriptor of the gradient of weight and bias."""
    hint = convolution_forward(engine, x, engine.describe_undecided(dw.shape), db, dy, attrs)
    geometry = convolution_geometry(x.shape, dy.shape, dw.shape[-2:], attrs)
    return engine.describe("convolution_backward_weights", AUTO, x, dw, db, dy, *geometry, hint, engine.attributes)


def conv2d_backward_weights(r: PrimitiveRequest) -> Recipe:
    """The recipe of the gradient of weight and bias."""
    x, dy, dw = r.inputs[0].layout, r.inputs[1].layout, r.outputs[0].layout
    db = r.outputs[1].layout if len(r.outputs) == 2 else None
    arguments = {SOURCE: 0, DIFF_TARGET: 1, DIFF_WEIGHTS: 2} | ({DIFF_BIAS: 3} if db else {})
    return Recipe(convolution_backward_weights(r.engine, x, dw, db, dy, r.attrs), arguments)
