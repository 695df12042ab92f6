"""Softmax cross-entropy, the counts for top-1 and top-5 accuracy, and the gradient; in float64 throughout.

Rows are taken a few at a time. Labels are not checked here: whoever feeds them does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ....layers.graph import TensorSpec
from ....layers.losses.cross_entropy import TOP
from ....layers.step_scalars import LOSS_SCALE
from .blocks import BUFFER_ELEMENTS, Spans
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec, float64, store

MOST_ROWS = 512


def _rows(op: OpSpec) -> tuple[int, int, int, Spans, Array]:
    """Images, classes, rows of a piece, the pieces, and where each row of a piece begins when it is flat."""
    images, classes = op.inputs[0].shape
    step = min(images, MOST_ROWS, max(1, BUFFER_ELEMENTS // classes))
    return images, classes, step, Spans(images, step), np.arange(step) * classes


def _exponentials(values: Array, logits: Array, column: Array) -> None:
    """Values ← exp(logits − largest), with the largest of each row left in `column`."""
    np.copyto(values, logits)
    np.maximum.reduce(values, axis=1, out=column)
    np.subtract(values, column[:, None], out=values)
    np.exp(values, out=values)


def _forward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    """Loss = mean over images of log Σ exp(l_j) − l_label; an image counts for top-n where fewer than n rank before.

    What ranks before the label: every other class whose logit is not at most the label's, so a NaN does.
    """
    images, classes, step, pieces, starts = _rows(op)

    def run(
        logits: Array,
        labels: Array,
        loss: Array,
        correct: Array,
        values: Array,
        column: Array,
        chosen: Array,
        own: Array,
        places: Array,
        below: Array,
    ) -> None:
        total, first, among = 0.0, 0, 0
        for piece in pieces:
            rows = piece.stop - piece.start
            part, wide, largest, picked = logits[piece], values[:rows], column[:rows], chosen[:rows]
            label, place, at_most = own[:rows], places[:rows], below[:rows]
            np.add(starts[:rows], labels[piece], out=place)
            np.take(part.reshape(-1), place, out=label, mode="clip")
            np.less_equal(part, label[:, None], out=at_most)
            at_most.reshape(-1)[place] = True
            np.copyto(wide, at_most)
            np.add.reduce(wide, axis=1, out=picked)
            first += int(np.count_nonzero(picked > classes - 1))
            among += int(np.count_nonzero(picked > classes - TOP))
            _exponentials(wide, part, largest)
            np.add.reduce(wide, axis=1, out=picked)
            np.log(picked, out=picked)
            np.add(picked, largest, out=picked)
            np.subtract(picked, label, out=picked)
            total += float(np.add.reduce(picked))
        loss[0] = total / images
        correct[:] = first, among

    vectors = (float64(step), float64(step), TensorSpec((step,), op.dtype), TensorSpec((step,), "int64"))
    return (NumpyKernel("rows", run, (float64(step, classes), *vectors, TensorSpec((step, classes), "bool"))),)


def _backward(op: OpSpec) -> tuple[NumpyKernel, ...]:
    """Dlogits = (softmax − one-hot) · loss_scale / N."""
    images, classes, step, pieces, starts = _rows(op)

    def run(
        logits: Array, labels: Array, scalars: Array, dlogits: Array, values: Array, column: Array, places: Array
    ) -> None:
        scale = float(scalars[LOSS_SCALE]) / images
        for piece in pieces:
            rows = piece.stop - piece.start
            wide, sums, place = values[:rows], column[:rows], places[:rows]
            _exponentials(wide, logits[piece], sums)
            np.add.reduce(wide, axis=1, out=sums)
            np.divide(wide, sums[:, None], out=wide)
            np.add(starts[:rows], labels[piece], out=place)
            wide.reshape(-1)[place] -= 1.0
            np.multiply(wide, scale, out=wide)
            store(dlogits[piece], wide)

    return (NumpyKernel("rows", run, (float64(step, classes), float64(step), TensorSpec((step,), "int64"))),)


LOSS: Mapping[str, Implementation] = MappingProxyType(
    {
        "softmax_cross_entropy": _forward,
        "softmax_cross_entropy_backward": _backward,
    }
)
