"""A blocked layout with rows of zeros around each image, which the library wants for a weight's gradient of small ones.

Its compiled code for AVX2 takes no image that has fewer rows than the kernel reaches over; its reference code, which
does, is hundreds of times slower, and on plain layouts it multiplies matrices in a workspace of four weights a thread.
Where the padding above and below is part of the image, the gradient is the same and the image has rows enough.

The library is told the taller shape; the tensor keeps its own. Numpy makes the copy: within a block of channels the
rows of an image lie together.
"""

from __future__ import annotations

from functools import partial

from ....layers.graph import Graph, Op, TensorSpec, itemsize
from ....layers.operations import Attrs
from ....layers.shape import CONVERT
from ..reference.numpy_kernel import Array, NumpyKernel, OpSpec
from .layouts import Layouts


def count_read_rows(kernel: tuple[int, ...], output: tuple[int, ...], attrs: Attrs) -> int:
    """Return how many rows a convolution reads, those of its padding included."""
    return int((output[2] - 1) * attrs["stride"][0] + (kernel[-2] - 1) * attrs["dilation"][0] + 1)


def is_row_padding(graph: Graph, op: Op, layouts: Layouts) -> bool:
    """Whether an operation of a lowered graph copies images into a layout with more rows."""
    if op.kind != CONVERT.name:
        return False
    made = graph.tensors[op.outputs[0]]
    return layouts.count_rows_above(made.shape, made.layout) is not None


def row_padding_spec(graph: Graph, op: Op, layouts: Layouts) -> OpSpec:
    """Describe the copy as numpy meets it: arrays (blocks of channels of all images, rows, elements of a row)."""
    source, target = (graph.tensors[t] for t in (*op.inputs, *op.outputs))
    taller = layouts.of(target.shape, target.layout)
    row = source.shape[3] * layouts.engine.block
    blocks = source.nbytes // (itemsize(source.dtype) * source.shape[2] * row)
    above = layouts.count_rows_above(target.shape, target.layout)
    specs = [TensorSpec((blocks, rows, row), source.dtype) for rows in (source.shape[2], taller.shape[2])]
    return OpSpec((specs[0],), (specs[1],), {"above": above})


def list_row_padding_kernels(op: OpSpec) -> tuple[NumpyKernel, ...]:
    """List the one kernel."""
    return (NumpyKernel("rows", partial(_pad_rows, **op.attrs)),)


def _pad_rows(source: Array, target: Array, above: int) -> None:
    below = above + source.shape[1]
    target[:, :above] = 0
    target[:, above:below] = source
    target[:, below:] = 0
