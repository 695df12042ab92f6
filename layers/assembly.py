"""An assembly puts a graph together: tensors and operations are appended, names kept unique, then it is frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..memory.errors import GraphError
from .graph import NO_OP, Graph, Op, Phase, Role, Slab, Tensor, TensorSpec
from .initializers import Initializer

NO_ATTRS: Mapping[str, Any] = MappingProxyType({})


class Assembly:
    """A graph to which tensors and operations are still being appended; the id of either is its position."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self._names: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._specs: list[TensorSpec] = []

    def tensor(
        self,
        name: str,
        spec: TensorSpec,
        role: Role,
        initializer: Initializer | None = None,
        part: Slab | None = None,
    ) -> int:
        """Append a tensor and return its id.

        Raises:
            GraphError: the name is taken.
        """
        if name in self._names:
            raise GraphError(
                name,
                "names that are given once",
                "a second tensor of that name",
                "Give one of the layers another name; a layer that applies a kind twice opens a scope for each: "
                "with builder.scope('second').",
            )
        self._names.add(name)
        self._specs.append(spec)
        self.tensors.append(
            Tensor(len(self.tensors), name, spec.shape, spec.dtype, role, spec.nbytes, "", initializer, part)
        )
        return len(self.tensors) - 1

    def add_derived(self, name: str, spec: TensorSpec, role: Role) -> int:
        """Append a tensor whose name gets a number where another has it, such as a gradient; return its id."""
        unique, number = name, self._numbers.get(name, 1)
        while unique in self._names:
            number += 1
            unique = f"{name}#{number}"
        self._numbers[name] = number
        return self.tensor(unique, spec, role)

    def op(
        self,
        kind: str,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attrs: Mapping[str, Any] = NO_ATTRS,
        *,
        updates: Sequence[int] = (),
        phase: Phase = Phase.FORWARD,
        forward_op: int = NO_OP,
    ) -> Op:
        """Append an operation and return it; without `forward_op` it is its own forward operation."""
        number = len(self.ops)
        op = Op(
            number,
            kind,
            name,
            tuple(inputs),
            tuple(outputs),
            attrs if isinstance(attrs, MappingProxyType) else MappingProxyType(dict(attrs)),
            tuple(updates),
            phase,
            number if forward_op == NO_OP else forward_op,
        )
        self.ops.append(op)
        return op

    def spec(self, tensor: int) -> TensorSpec:
        """Shape and type of a tensor."""
        return self._specs[tensor]

    def graph(self, outputs: Iterable[int], layers: int) -> Graph:
        """Freeze what was appended into a graph of so many layers, from which the host reads the tensors `outputs`."""
        return Graph(self.name, tuple(self.tensors), tuple(self.ops), tuple(outputs), layers)
