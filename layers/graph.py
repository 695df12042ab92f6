"""The graph of a computation: tensors and operations, as plain data.

The forward network, the whole training step and evaluation are graphs of this one form. Operations are listed in an
order in which they can run. Each tensor is written once, except the ones that an operation names in `updates`, which it
overwrites in place: parameters, state of the optimizer and running statistics. Nothing here computes or allocates.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from ..memory.errors import GraphError
from .initializers import Initializer, from_plain, to_plain

Signature = tuple[Hashable, ...]

NO_OP = -1
FORMAT = 1


class Role(str, Enum):
    """What a tensor is to the training step."""

    INPUT = "input"
    LABEL = "label"
    SCALARS = "scalars"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER = "momentum"  # what SGD keeps; the text stays, so that fingerprints do
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    METRIC = "metric"


FED = frozenset({Role.INPUT, Role.LABEL, Role.SCALARS})
"""Roles of the tensors that the host writes before every step."""

STATE = frozenset({Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER})
"""Roles of the tensors that live from step to step."""


class Phase(str, Enum):
    """The part of a step that an operation belongs to."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and element type of a tensor that does not exist yet."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the plain layout."""
        return math.prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True, slots=True)
class Slab:
    """The place of a slab in its whole tensor, which no operation holds: consecutive rows along the first axis.

    Attributes:
        whole: name of the whole tensor, under which it is read and saved.
        shape: shape of the whole tensor.
        first: row of the whole at which the part begins.
    """

    whole: str
    shape: tuple[int, ...]
    first: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a graph.

    Attributes:
        id: its index in `Graph.tensors`.
        name: unique, made from the layer's name: `stage1.0.conv1.weight`.
        shape: logical shape, activations as `(N, C, H, W)` or `(N, F)`.
        dtype: numpy's name of the element type.
        role: what it is to the training step.
        nbytes: bytes in the layout of the backend; the plain layout until lowering.
        layout: name of the backend's layout; empty for plain C order.
        initializer: how a parameter or buffer gets its first value; None for all others. That of a slab is the whole
            tensor's.
        part: its place in a whole tensor; None for all but slabs and what the optimizer keeps of them.
    """

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    nbytes: int
    layout: str = ""
    initializer: Initializer | None = None
    part: Slab | None = None

    @property
    def spec(self) -> TensorSpec:
        """Shape and element type."""
        return TensorSpec(self.shape, self.dtype)

    @property
    def elements(self) -> int:
        """Number of elements of the logical shape."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a graph.

    Attributes:
        id: its index in `Graph.ops`.
        kind: name of an `OpKind`.
        name: the layer that it comes from.
        inputs: ids of the tensors that it reads.
        outputs: ids of the tensors that it makes.
        attrs: what else its kernel needs: strides, probabilities …; plain JSON values.
        updates: those of `inputs` that it overwrites in place. Such an operation runs exactly once per step.
        phase: the part of the step that it belongs to.
        forward_op: id of the forward operation that it serves; its own id in the forward pass.
        block: index of its block in the chain of blocks; given by lowering.
    """

    id: int
    kind: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    updates: tuple[int, ...] = ()
    phase: Phase = Phase.FORWARD
    forward_op: int = NO_OP
    block: int = NO_OP


@dataclass(frozen=True)
class Graph:
    """A whole computation.

    What follows from it and takes long to find, its signatures and its fingerprint, is found once, when first asked
    for.

    Attributes:
        name: the name of the network.
        tensors: all tensors; `tensors[i].id == i`.
        ops: all operations in a runnable order; `ops[i].id == i`.
        outputs: ids of the tensors that the host reads afterwards.
        layers: number of layers that the network was made from.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]
    layers: int

    def with_role(self, *roles: Role) -> list[Tensor]:
        """Return all tensors of the given roles, in order."""
        wanted = set(roles)
        return [t for t in self.tensors if t.role in wanted]

    @property
    def parameters(self) -> int:
        """Number of trained numbers."""
        return sum(t.elements for t in self.with_role(Role.PARAMETER))

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, running statistics and state of the optimizer."""
        return sum(t.nbytes for t in self.with_role(*STATE))

    def readers(self) -> list[list[int]]:
        """Return, for each tensor, the ids of the operations that read it, in order."""
        readers: list[list[int]] = [[] for _ in self.tensors]
        for op in self.ops:
            for tensor in dict.fromkeys(op.inputs):
                readers[tensor].append(op.id)
        return readers

    def producers(self) -> list[int]:
        """Return, for each tensor, the id of the operation that makes it, or `NO_OP`."""
        producers = [NO_OP] * len(self.tensors)
        for op in self.ops:
            for tensor in op.outputs:
                producers[tensor] = op.id
        return producers

    def signature(self, op: Op) -> Signature:
        """Return what is equal for two operations exactly when one kernel serves both.

        It holds the kind, the shapes, element types and layouts of all operands, and the attributes. `op` reads and
        makes tensors of this graph, but need not be one of its operations.
        """
        if op.id < len(self.ops) and self.ops[op.id] is op:
            return self._signatures[op.id]
        return self._find_signature(op)

    @cached_property
    def _signatures(self) -> tuple[Signature, ...]:
        """The signature of each operation; equal ones are one object, which makes comparing them fast."""
        unique: dict[Signature, Signature] = {}
        return tuple([unique.setdefault(s, s) for s in map(self._find_signature, self.ops)])

    def _find_signature(self, op: Op) -> Signature:
        tensors = self.tensors
        specs = tuple([(t.shape, t.dtype, t.layout) for t in [tensors[i] for i in (*op.inputs, *op.outputs)]])
        return op.kind, len(op.inputs), specs, tuple(sorted(op.attrs.items()))

    def to_json(self) -> str:
        """Return the graph as JSON, from which `Graph.from_json` makes an equal graph."""
        document = {
            "format": FORMAT,
            "name": self.name,
            "layers": self.layers,
            "tensors": [
                # Without a part nothing is added, so that the fingerprints in old checkpoints stay.
                [t.name, t.shape, t.dtype, t.role.value, t.nbytes, t.layout, to_plain(t.initializer)]
                + ([] if t.part is None else [[t.part.whole, t.part.shape, t.part.first]])
                for t in self.tensors
            ],
            "ops": [
                [o.kind, o.name, o.inputs, o.outputs, dict(o.attrs), o.updates, o.phase.value, o.forward_op, o.block]
                for o in self.ops
            ],
            "outputs": self.outputs,
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Make a graph from the JSON that `to_json` returns.

        Raises:
            GraphError: the text is not a graph of this format.
        """
        try:
            document = json.loads(text)
            found = document["format"]
            if found != FORMAT:
                raise GraphError("graph", f"format {FORMAT}", f"format {found}")
            tensors = tuple(
                Tensor(
                    i,
                    name,
                    tuple(shape),
                    dtype,
                    Role(role),
                    nbytes,
                    layout,
                    from_plain(initializer),
                    _slab_from_plain(*part),
                )
                for i, (name, shape, dtype, role, nbytes, layout, initializer, *part) in enumerate(document["tensors"])
            )
            ops = tuple(
                Op(i, kind, name, tuple(ins), tuple(outs), _freeze(attrs), tuple(ups), Phase(phase), forward, block)
                for i, (kind, name, ins, outs, attrs, ups, phase, forward, block) in enumerate(document["ops"])
            )
            return cls(document["name"], tensors, ops, tuple(document["outputs"]), document["layers"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise GraphError("graph", "JSON written by Graph.to_json", f"{type(error).__name__}: {error}") from error

    def fingerprint(self) -> str:
        """Return a digest that differs when anything in the graph differs."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _slab_from_plain(plain: tuple[str, list[int], int] | None = None) -> Slab | None:
    if plain is None:
        return None
    whole, shape, first = plain
    return Slab(whole, tuple(shape), first)


def _freeze(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType({k: _to_tuples(v) for k, v in attrs.items()})


def _to_tuples(value: Any) -> Any:
    return tuple(_to_tuples(v) for v in value) if isinstance(value, list) else value


@lru_cache(maxsize=64)
def itemsize(dtype: str) -> int:
    """Return the bytes of one element of numpy's type `dtype`."""
    return int(np.dtype(dtype).itemsize)
