"""Recipes of poolings, and which poolings the library does not compute as PyTorch does."""

from __future__ import annotations

from collections.abc import Mapping

from ....layers.operations import Attrs
from .handles import (
    DIFF_SOURCE,
    DIFF_TARGET,
    SOURCE,
    TARGET,
    WORKSPACE,
    Descriptor,
    Engine,
    PrimitiveDescriptor,
    dimensions,
)
from .recipe import TRAINING, PrimitiveRequest, Recipe, overhang

MAX, AVERAGE_PADDED, AVERAGE = 511, 767, 1023


def pooling_forward(
    engine: Engine, x: Descriptor, y: Descriptor, attrs: Attrs, algorithm: int, propagation: int = TRAINING
) -> tuple[PrimitiveDescriptor, tuple[object, ...]]:
    """Describe the forward pooling; return the geometry too, which the backward pooling shares."""
    kernel = attrs.get("kernel", x.shape[2:])
    stride, padding = attrs.get("stride", kernel), attrs.get("padding", (0, 0))
    after = [overhang(x.shape[2 + a], y.shape[2 + a], kernel[a], stride[a], padding[a]) for a in (0, 1)]
    geometry = tuple(dimensions(v) for v in (stride, kernel, (0, 0), padding, after))
    return engine.describe("pooling_forward", propagation, algorithm, x, y, *geometry, engine.attributes), geometry


def counts_alike(image: tuple[int, ...], output: tuple[int, ...], attrs: Attrs) -> bool:
    """Whether the library's mean is PyTorch's.

    Where padding counts, the library divides by the whole window; PyTorch leaves out what hangs over the padded image,
    as the last window may with `ceil_mode`.
    """
    if not attrs.get("count_include_pad", False):
        return True
    kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
    return all(overhang(image[2 + a], output[2 + a], kernel[a], stride[a], padding[a]) <= padding[a] for a in (0, 1))


def average_algorithm(attrs: Attrs) -> int:
    """Return the library's number of the mean, in which padding counts or does not."""
    return AVERAGE_PADDED if attrs.get("count_include_pad", True) else AVERAGE


def max_pool(r: PrimitiveRequest) -> Recipe:
    """Make the recipe of a max pooling, which keeps where each maximum was."""
    made, _ = pooling_forward(r.engine, r.inputs[0].layout, r.outputs[0].layout, r.attrs, MAX)
    return Recipe(made, {SOURCE: 0, TARGET: 1, WORKSPACE: 2})


def average_pool(r: PrimitiveRequest) -> Recipe:
    """Make the recipe of an average pooling: over the whole image, where the attributes name no kernel."""
    made, _ = pooling_forward(r.engine, r.inputs[0].layout, r.outputs[0].layout, r.attrs, average_algorithm(r.attrs))
    return Recipe(made, {SOURCE: 0, TARGET: 1})


def _pool_backward(r: PrimitiveRequest, algorithm: int, arguments: Mapping[int, int]) -> Recipe:
    dy, dx = r.inputs[0].layout, r.outputs[0].layout
    hint, geometry = pooling_forward(r.engine, dx, dy, r.attrs, algorithm)
    made = r.engine.describe("pooling_backward", algorithm, dx, dy, *geometry, hint, r.engine.attributes)
    return Recipe(made, arguments)


def max_pool_backward(r: PrimitiveRequest) -> Recipe:
    """Make the recipe of a max pooling's gradient."""
    return _pool_backward(r, MAX, {DIFF_TARGET: 0, WORKSPACE: 1, DIFF_SOURCE: 2})


def average_pool_backward(r: PrimitiveRequest) -> Recipe:
    """Make the recipe of an average pooling's gradient."""
    return _pool_backward(r, average_algorithm(r.attrs), {DIFF_TARGET: 0, DIFF_SOURCE: 1})
