"""The recipe of each kind of operation; the reference backend computes all other kinds, on plain layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ....layers.operations import Attrs, Specs
from .convolution import conv2d, conv2d_backward_data, conv2d_backward_weights
from .handles import (
    ADDITION,
    BIAS,
    DIFF_BIAS,
    DIFF_SOURCE,
    DIFF_TARGET,
    DIFF_WEIGHTS,
    MAXIMUM,
    RELU,
    SOURCE,
    SOURCE_1,
    TARGET,
    WEIGHTS,
    Descriptor,
    Engine,
    PrimitiveDescriptor,
)
from .normalization import (
    batch_norm_backward,
    batch_norm_inference,
    batch_norm_relu,
    batch_norm_relu_backward,
    batch_norm_training,
)
from .not_a_number import hand_on_normalized, hand_on_pooled
from .pooling import average_pool, average_pool_backward, counts_alike, max_pool, max_pool_backward
from .recipe import TRAINING, MakeRecipe, PrimitiveRequest, Recipe


def _linear_forward(
    engine: Engine, x: Descriptor, weight: Descriptor, bias: Descriptor | None, y: Descriptor
) -> PrimitiveDescriptor:
    return engine.describe("inner_product_forward", TRAINING, x, weight, bias, y, engine.attributes)


def _linear(r: PrimitiveRequest) -> Recipe:
    bias = r.inputs[2].layout if len(r.inputs) == 3 else None
    made = _linear_forward(r.engine, r.inputs[0].layout, r.inputs[1].layout, bias, r.outputs[0].layout)
    return Recipe(made, {SOURCE: 0, WEIGHTS: 1, TARGET: len(r.inputs)} | ({BIAS: 2} if bias else {}))


def _linear_data(r: PrimitiveRequest) -> Recipe:
    dy, weight, dx = r.inputs[0].layout, r.inputs[1].layout, r.outputs[0].layout
    hint = _linear_forward(r.engine, dx, weight, None, dy)
    made = r.engine.describe("inner_product_backward_data", dx, weight, dy, hint, r.engine.attributes)
    return Recipe(made, {DIFF_TARGET: 0, WEIGHTS: 1, DIFF_SOURCE: 2})


def _linear_weights(r: PrimitiveRequest) -> Recipe:
    x, dy, dw = r.inputs[0].layout, r.inputs[1].layout, r.outputs[0].layout
    db = r.outputs[1].layout if len(r.outputs) == 2 else None
    hint = _linear_forward(r.engine, x, dw, db, dy)
    made = r.engine.describe("inner_product_backward_weights", x, dw, db, dy, hint, r.engine.attributes)
    return Recipe(made, {SOURCE: 0, DIFF_TARGET: 1, DIFF_WEIGHTS: 2} | ({DIFF_BIAS: 3} if db else {}))


def _relu(r: PrimitiveRequest) -> Recipe:
    """The larger of x and x, and then what hands a NaN on: an element-wise primitive would take no post-operations."""
    x, y = r.inputs[0].layout, r.outputs[0].layout
    made = r.engine.describe("binary", MAXIMUM, x, x, y, r.engine.rectifying)
    return Recipe(made, {SOURCE: 0, SOURCE_1: 0, TARGET: 1})


def _relu_backward(r: PrimitiveRequest) -> Recipe:
    """The library reads the input's sign, and the output has the same."""
    y, dy, dx = r.inputs[0].layout, r.inputs[1].layout, r.outputs[0].layout
    hint = r.engine.describe("eltwise_forward", TRAINING, RELU, y, y, 0.0, 0.0, r.engine.attributes)
    made = r.engine.describe("eltwise_backward", RELU, dx, dy, y, 0.0, 0.0, hint, r.engine.attributes)
    return Recipe(made, {SOURCE: 0, DIFF_TARGET: 1, DIFF_SOURCE: 2})


def _sum(r: PrimitiveRequest, attributes: object) -> Recipe:
    a, b, y = r.inputs[0].layout, r.inputs[1].layout, r.outputs[0].layout
    return Recipe(r.engine.describe("binary", ADDITION, a, b, y, attributes), {SOURCE: 0, SOURCE_1: 1, TARGET: 2})


def _add(r: PrimitiveRequest) -> Recipe:
    return _sum(r, r.engine.attributes)


def _add_relu(r: PrimitiveRequest) -> Recipe:
    return _sum(r, r.engine.rectifying)


def _batch_norm_relu(r: PrimitiveRequest) -> Recipe:
    return replace(batch_norm_relu(r), make_around=hand_on_normalized)


def _max_pool(r: PrimitiveRequest) -> Recipe:
    return replace(max_pool(r), make_around=hand_on_pooled)


def _convert(r: PrimitiveRequest) -> Recipe:
    return Recipe(r.engine.reorder(r.inputs[0].layout, r.outputs[0].layout), {SOURCE: 0, TARGET: 1})


RECIPES: Mapping[str, MakeRecipe] = MappingProxyType(
    {
        "conv2d": conv2d,
        "conv2d_backward_data": conv2d_backward_data,
        "conv2d_backward_weights": conv2d_backward_weights,
        "linear": _linear,
        "linear_backward_data": _linear_data,
        "linear_backward_weights": _linear_weights,
        "batch_norm_training": batch_norm_training,
        "batch_norm_inference": batch_norm_inference,
        "batch_norm_backward": batch_norm_backward,
        "batch_norm_relu": _batch_norm_relu,
        "batch_norm_relu_backward": batch_norm_relu_backward,
        "relu": _relu,
        "relu_backward": _relu_backward,
        "max_pool": _max_pool,
        "max_pool_backward": max_pool_backward,
        "avg_pool": average_pool,
        "avg_pool_backward": average_pool_backward,
        "global_avg_pool": average_pool,
        "global_avg_pool_backward": average_pool_backward,
        "add": _add,
        "add_relu": _add_relu,
        "convert": _convert,
    }
)


def is_fast(engine: Engine, kind: str) -> bool:
    """Whether the library computes a kind no slower than numpy: before AVX2 it has reference code alone for two images.

    A ReLU that hands a NaN on is made of that of two, see `_relu`.
    """
    return kind not in ("add", "relu") or engine.adds


def computes(kind: str, inputs: Specs, outputs: Specs, attrs: Attrs) -> bool:
    """Whether the library computes an operation, as PyTorch does; the reference backend computes all others."""
    if kind == "avg_pool":
        return counts_alike(inputs[0].shape, outputs[0].shape, attrs)
    if kind == "avg_pool_backward":
        return counts_alike(outputs[0].shape, inputs[0].shape, attrs)
    return kind in RECIPES
