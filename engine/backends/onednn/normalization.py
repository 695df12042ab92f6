"""Recipes of batch normalization, alone or with the ReLU that follows it.

With the ReLU the library keeps a mask, its workspace, of what was positive: one bit per element in blocked layouts,
one byte in others. The backward pass reads it in place of the ReLU's output. With the running statistics the ReLU stays
apart, as the library's own would make a 0 of a NaN, and no batch statistics would tell.
"""

from __future__ import annotations

from ....layers.operations import Attrs
from .handles import (
    DIFF_SCALE,
    DIFF_SHIFT,
    DIFF_SOURCE,
    DIFF_TARGET,
    MEAN,
    SCALE,
    SHIFT,
    SOURCE,
    TARGET,
    VARIANCE,
    WORKSPACE,
    Descriptor,
    Engine,
    PrimitiveDescriptor,
)
from .recipe import BACKWARD, INFERENCE, TRAINING, PrimitiveRequest, Recipe

GLOBAL_STATISTICS, USE_SCALE, USE_SHIFT, WITH_RELU = 1, 2, 4, 8
AFFINE = USE_SCALE | USE_SHIFT


def normalization_forward(
    engine: Engine, x: Descriptor, attrs: Attrs, propagation: int = TRAINING, flags: int = WITH_RELU
) -> PrimitiveDescriptor:
    """Describe the forward batch norm, whose output has the layout of its input; by default the one with a mask."""
    return engine.describe(
        "batch_normalization_forward", propagation, x, x, attrs["eps"], AFFINE | flags, engine.attributes
    )


def _training(r: PrimitiveRequest, flags: int) -> PrimitiveDescriptor:
    flags |= GLOBAL_STATISTICS if r.repeat else 0
    return normalization_forward(r.engine, r.inputs[0].layout, r.attrs, TRAINING, flags)


def batch_norm_training(r: PrimitiveRequest) -> Recipe:
    """Make the recipe with the batch's statistics, which the first run makes and repeated runs read."""
    return Recipe(_training(r, 0), {SOURCE: 0, SCALE: 1, SHIFT: 2, TARGET: 3, MEAN: 4, VARIANCE: 5})


def batch_norm_relu(r: PrimitiveRequest) -> Recipe:
    """Make the recipe with the batch's statistics, a ReLU and its mask."""
    arguments = {SOURCE: 0, SCALE: 1, SHIFT: 2, TARGET: 3, MEAN: 4, VARIANCE: 5, WORKSPACE: 6}
    return Recipe(_training(r, WITH_RELU), arguments)


def batch_norm_inference(r: PrimitiveRequest) -> Recipe:
    """Make the recipe with the running statistics."""
    made = normalization_forward(r.engine, r.inputs[0].layout, r.attrs, INFERENCE, GLOBAL_STATISTICS)
    return Recipe(made, {SOURCE: 0, SCALE: 1, SHIFT: 2, MEAN: 3, VARIANCE: 4, TARGET: 5})


def normalization_gradient(
    engine: Engine, x: Descriptor, dy: Descriptor, dx: Descriptor, attrs: Attrs, flags: int
) -> PrimitiveDescriptor:
    """Describe the gradient of a batch norm."""
    hint = normalization_forward(engine, x, attrs, TRAINING, flags)
    return engine.describe(
        "batch_normalization_backward", BACKWARD, dx, dy, x, attrs["eps"], AFFINE | flags, hint, engine.attributes
    )


def _gradient(r: PrimitiveRequest, flags: int) -> PrimitiveDescriptor:
    x, dy, dx = r.inputs[0].layout, r.inputs[1].layout, r.outputs[0].layout
    return normalization_gradient(r.engine, x, dy, dx, r.attrs, flags)


def batch_norm_backward(r: PrimitiveRequest) -> Recipe:
    """Make the recipe of the gradients of image, scale and shift."""
    arguments = {SOURCE: 0, DIFF_TARGET: 1, SCALE: 2, MEAN: 3, VARIANCE: 4}
    return Recipe(_gradient(r, 0), arguments | {DIFF_SOURCE: 5, DIFF_SCALE: 6, DIFF_SHIFT: 7})


def batch_norm_relu_backward(r: PrimitiveRequest) -> Recipe:
    """Make the recipe of the gradients of image, scale and shift through the ReLU, by its mask."""
    arguments = {SOURCE: 0, DIFF_TARGET: 1, SCALE: 2, MEAN: 3, VARIANCE: 4, WORKSPACE: 5}
    return Recipe(_gradient(r, WITH_RELU), arguments | {DIFF_SOURCE: 6, DIFF_SCALE: 7, DIFF_SHIFT: 8})
