"""Splitting large parameters into slabs: a rewrite of the forward graph, before its backward pass is derived.

A fully connected layer whose weight is above the limit becomes one `linear` for each slab of output features, joined by
a `concat`. Gradients, updates and the sum of the slabs' data gradients then follow as for any graph, for one slab after
the other: the largest weight gradient that lives is that of a slab, and not of the whole parameter. How many slabs
there are depends on the weight's shape and type alone, so no budget, strategy or batch changes a result.

A slab knows its place in the whole parameter (`Tensor.part`), which stays what users name, read and save. Weights of
convolutions are left whole: the bundled networks have none above 9 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from .assembly import Assembly
from .graph import Graph, Op, Role, Slab, TensorSpec
from .linear import LINEAR
from .merge import CONCAT

SLAB_BYTES = 2**25
"""The most bytes of a slab in the plain layout: 32 MiB."""


def slab_rows(spec: TensorSpec, limit_bytes: int = SLAB_BYTES) -> tuple[int, ...]:
    """Return the rows of each slab of a weight (out, in): the fewest slabs within the limit, as equal as they can be.

    A slab has one row at least, even where that is above the limit.
    """
    rows = spec.shape[0]
    most = max(1, limit_bytes * rows // spec.nbytes)
    count = -(-rows // most)
    return tuple(rows // count + (slab < rows % count) for slab in range(count))


def split_large(graph: Graph, limit_bytes: int = SLAB_BYTES) -> Graph:
    """Return the forward graph with fully connected weights above `limit_bytes`, and their biases, in slabs."""
    rows = {
        tensor: slab_rows(graph.tensors[op.inputs[1]].spec, limit_bytes)
        for op in graph.ops
        if op.kind == LINEAR.name and graph.tensors[op.inputs[1]].nbytes > limit_bytes
        for tensor in op.inputs[1:]
    }
    return _Split(graph, rows).run() if rows else graph


class _Split:
    """The rewrite of one graph; `rows` has the rows of the slabs of each tensor that is split."""

    def __init__(self, graph: Graph, rows: dict[int, tuple[int, ...]]) -> None:
        self._graph = graph
        self._rows = rows
        self._assembly = Assembly(graph.name)
        self._map: dict[int, int] = {}
        self._slabs: dict[int, list[int]] = {}

    def run(self) -> Graph:
        for tensor in self._graph.tensors:
            if tensor.id in self._rows:
                self._slabs[tensor.id] = self._split(tensor.id)
            elif tensor.role is not Role.ACTIVATION:
                self._map[tensor.id] = self._assembly.tensor(tensor.name, tensor.spec, tensor.role, tensor.initializer)
        for op in self._graph.ops:
            self._append(op)
        return self._assembly.graph((self._map[t] for t in self._graph.outputs), self._graph.layers)

    def _split(self, tensor: int) -> list[int]:
        whole, made = self._graph.tensors[tensor], []
        for first, count in _spans(self._rows[tensor]):
            spec = TensorSpec((count, *whole.shape[1:]), whole.dtype)
            part = Slab(whole.name, whole.shape, first)
            made.append(
                self._assembly.tensor(_name_slab(whole.name, first, count), spec, whole.role, whole.initializer, part)
            )
        return made

    def _append(self, op: Op) -> None:
        if not any(t in self._rows for t in op.inputs):
            self._apply(op.kind, op, [self._map[t] for t in op.inputs], [self._add_same(t) for t in op.outputs])
            return
        x, *split = op.inputs
        assert op.kind == LINEAR.name, f"{op.kind} {op.name} reads a weight that a linear operation has in slabs"
        (y,) = (self._graph.tensors[t] for t in op.outputs)
        parts = []
        for slab, (first, count) in enumerate(_spans(self._rows[split[0]])):
            spec = TensorSpec((y.shape[0], count), y.dtype)
            parts.append(self._assembly.tensor(_name_slab(y.name, first, count), spec, y.role))
            self._apply(op.kind, op, [self._map[x], *(self._slabs[t][slab] for t in split)], parts[-1:])
        self._assembly.op(CONCAT.name, op.name, parts, [self._add_same(y.id)])

    def _apply(self, kind: str, op: Op, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self._assembly.op(kind, op.name, inputs, outputs, op.attrs)

    def _add_same(self, tensor: int) -> int:
        old = self._graph.tensors[tensor]
        self._map[tensor] = self._assembly.tensor(old.name, old.spec, old.role)
        return self._map[tensor]


def _spans(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first row and the number of rows of each slab."""
    return list(zip(accumulate(rows[:-1], initial=0), rows, strict=True))


def _name_slab(name: str, first: int, count: int) -> str:
    return f"{name}[{first}:{first + count}]"
