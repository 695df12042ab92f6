"""A NaN is handed on where the library's own code would drop it.

A ReLU alone or behind a sum is one that hands it on (`handles.RECTIFY`). The library has no such max pooling, which
passes over a NaN, and no such batch norm with a ReLU, so these are looked at from outside: the mean of each channel
before the pooling, and the statistics of the batch norm, are NaN where any value is. Then the first element of each
image concerned is made NaN in the output, so that what follows meets it. The means are put where the output will be, so
no memory is needed beside it. Infinities of both signs in one channel count as a NaN too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .handles import SOURCE, TARGET, Primitive
from .layouts import PLAIN
from .pooling import AVERAGE, pooling_forward
from .recipe import INFERENCE, Around, PrimitiveRequest

ITEM = 4
"""Bytes of a float32."""
NORMALIZED_BY = (1, 2, 4, 5)
"""Positions of scale, shift, mean and variance among the operands of a batch norm."""


def make_view(elements: int) -> Callable[[int], npt.NDArray[np.float32]]:
    """Return what views so many float32 at a machine address."""
    block: Any = ctypes.c_float * elements

    def view(address: int) -> npt.NDArray[np.float32]:
        return np.frombuffer(block.from_address(address), np.float32)

    return view


def hand_on_pooled(request: PrimitiveRequest) -> Around:
    """Make what runs a max pooling (x → y, index) and marks the images in which x holds a NaN."""
    x, y = request.inputs[0], request.outputs[0]
    images = x.spec.shape[0]
    find_means = _average_planes(request)
    view = make_view(y.layout.nbytes // ITEM)

    def around(run: Callable[[], None], addresses: Sequence[int]) -> None:
        made = view(addresses[1]).reshape(images, -1)
        marked = _find_marked(find_means(addresses[0], addresses[1]))
        run()
        made[marked, 0] = np.nan

    return around


def _find_marked(means: npt.NDArray[np.float32]) -> Sequence[int]:
    """Return the images, which are rows of `means`, that hold a NaN."""
    total = np.add.reduce(means, axis=None)
    return np.flatnonzero(np.isnan(means).any(axis=1)).tolist() if total != total else []


def _average_planes(request: PrimitiveRequest) -> Callable[[int, int], npt.NDArray[np.float32]]:
    """Make what puts the mean of each channel of each image of x, or its sum, at the beginning of y."""
    engine, x = request.engine, request.inputs[0]
    images, channels, height, width = x.spec.shape
    if x.layout.layout == PLAIN:
        source, means = make_view(images * channels * height * width), make_view(images * channels)

        def add(x: int, y: int) -> npt.NDArray[np.float32]:
            made = means(y).reshape(images, channels)
            return np.add.reduce(source(x).reshape(images, channels, -1), axis=2, out=made)

        return add
    layout = engine.describe_blocked((images, channels, 1, 1))
    made, _ = pooling_forward(engine, x.layout, layout, {}, AVERAGE, INFERENCE)
    assert not made.scratchpad_bytes, "a mean of blocked images needs no workspace"
    run = Primitive(engine, made, {SOURCE: x.layout, TARGET: layout}).run
    view = make_view(layout.nbytes // ITEM)

    def average(x: int, y: int) -> npt.NDArray[np.float32]:
        run([x, y])
        return view(y).reshape(images, -1)

    return average


def hand_on_normalized(request: PrimitiveRequest) -> Around:
    """Make what runs a batch norm with its ReLU (x, scale, shift → y, mean, variance, mask) and marks all its images.

    A channel that holds a NaN has a mean that is none.
    """
    y, images = request.outputs[0], request.inputs[0].spec.shape[0]
    view, statistics = make_view(y.layout.nbytes // ITEM), make_view(request.outputs[1].spec.shape[0])

    def around(run: Callable[[], None], addresses: Sequence[int]) -> None:
        run()
        total = 0.0
        for place in NORMALIZED_BY:
            total += float(np.add.reduce(statistics(addresses[place])))
        if total != total:
            view(addresses[3]).reshape(images, -1)[:, 0] = np.nan

    return around
