"""Dropout, whose mask is drawn anew whenever it is needed.

An element is kept where u ≥ p, u being the element's float32 number from a Philox generator with the key (seed, step)
and a counter whose third word is the layer's `stream`. Layers and steps thus never share numbers, and the mask does
not depend on the type of the data or on how many numbers are drawn at a time. Source: Salmon et al., 2011.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ....layers.dropout import scale_of_kept
from ....layers.graph import TensorSpec
from .blocks import flat_spans
from .numpy_kernel import Array, Implementation, NumpyKernel, OpSpec


def uniforms(random_key: Array, stream: int) -> np.random.Generator:
    """Make the generator whose float32 numbers, in order of the elements, decide about one dropout of one step.

    Args:
        random_key: int64 (2,): seed and step.
        stream: the number of the layer among those that draw.
    """
    counter = np.array([0, 0, stream, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=random_key.view(np.uint64), counter=counter))


def _dropout(op: OpSpec) -> tuple[NumpyKernel, ...]:
    p, stream = op.attrs["p"], op.attrs["stream"]
    longest, pieces = flat_spans(math.prod(op.inputs[0].shape))
    scale, threshold = scale_of_kept(p), np.float32(p)

    def run(x: Array, random_key: Array, y: Array, numbers: Array, dropped: Array) -> None:
        generator = uniforms(random_key, stream)
        source, target = x.reshape(-1), y.reshape(-1)
        for span in pieces:
            length = span.stop - span.start
            drawn, zero, made = numbers[:length], dropped[:length], target[span]
            generator.random(dtype=np.float32, out=drawn)
            np.less(drawn, threshold, out=zero)
            np.multiply(source[span], scale, out=made)
            np.copyto(made, 0, where=zero)

    return (NumpyKernel("pieces", run, (TensorSpec((longest,), "float32"), TensorSpec((longest,), "bool"))),)


DROPOUT: Mapping[str, Implementation] = MappingProxyType({"dropout_training": _dropout, "dropout_backward": _dropout})
"""Forward and backward pass are the same operation: what is kept is multiplied by 1 / (1 − p)."""
