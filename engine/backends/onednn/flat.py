"""Operations that numpy computes over whatever layout their operands share: those whose kind is declared flat.

The operands are then vectors of all that their layout holds, padding included: that is zero, and a flat kind makes
zeros of zeros (`OpKind.flat`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....layers.graph import Graph, Op, Role, Tensor, TensorSpec, itemsize
from ....layers.kinds import KINDS
from ....memory.errors import ConfigError
from ..reference.numpy_kernel import Array, Implementation, NumpyKernel, OpSpec

DTYPE = "float32"
"""The element type of what has a layout; all else lies plain."""
TRIED = 24
"""Elements of the vectors on which a kind that a program has declared flat is tried."""


def take_part(op: Op, tensors: Sequence[Tensor]) -> list[bool]:
    """Tell for each input and output whether it has the shape and type of the first input, and so its layout."""
    first = tensors[op.inputs[0]].spec
    return [tensors[t].spec == first for t in (*op.inputs, *op.outputs)]


def is_flat(op: Op, tensors: Sequence[Tensor]) -> bool:
    """Whether an operation may run over a layout in one piece: by its kind, and by its operands.

    All outputs must have the shape and type of the first input, float32, and no other input its shape in another type,
    but for what the host gives to the step.
    """
    if not KINDS[op.kind].flat or tensors[op.inputs[0]].dtype != DTYPE:
        return False
    part = take_part(op, tensors)
    others = [tensors[t] for t, taking in zip(op.inputs, part, strict=False) if not taking]
    shape = tensors[op.inputs[0]].shape
    return all(part[len(op.inputs) :]) and all(t.shape != shape or t.role is Role.SCALARS for t in others)


def flat_spec(graph: Graph, op: Op) -> OpSpec:
    """Describe an operation of a lowered graph as numpy meets it: what takes part as vectors, all else as it is."""
    tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
    vector = TensorSpec((tensors[0].nbytes // itemsize(DTYPE),), DTYPE)
    part = take_part(op, graph.tensors)
    specs = tuple(vector if taking else t.spec for t, taking in zip(tensors, part, strict=True))
    return OpSpec(specs[: len(op.inputs)], specs[len(op.inputs) :], op.attrs)


def require_flat(graph: Graph, op: Op, implementation: Implementation) -> None:
    """Try what a program has declared flat on short vectors, since a wrong declaration gives wrong numbers silently.

    Zeros must make zeros, which padding relies on, and the same elements in reverse order must make the same results
    in reverse order. Not checked: whether that holds for all values.

    Raises:
        ConfigError: it does not.
    """
    tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
    part = take_part(op, graph.tensors)
    specs = [TensorSpec((TRIED,), DTYPE) if taking else t.spec for t, taking in zip(tensors, part, strict=True)]
    count = len(op.inputs)
    spec = OpSpec(tuple(specs[:count]), tuple(specs[count:]), op.attrs)
    rng = np.random.default_rng(0)
    zeros: list[Array] = [
        np.ones(s.shape, s.dtype) if not taking else np.zeros(s.shape, s.dtype)
        for s, taking in zip(specs, part, strict=True)
    ]
    drawn: list[Array] = [rng.uniform(0.25, 1, s.shape).astype(s.dtype) for s in specs]
    turned = [a[::-1].copy() if taking else a for a, taking in zip(drawn, part, strict=True)]
    where, hint = f"{op.name} ({op.kind})", "Leave flat=True out of its declaration."
    for kernel in implementation(spec):
        try:
            made = _run_once(kernel, zeros, count)
            forth, back = _run_once(kernel, drawn, count), _run_once(kernel, turned, count)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise ConfigError(where, "a flat kind, which takes its operands as vectors", found, hint) from error
        if any((a != 0).any() for a, taking in zip(made, part, strict=True) if taking):
            raise ConfigError(where, "a flat kind, which makes zeros of zeros", "other values", hint)
        same = [
            np.allclose(a, b[::-1], rtol=1e-4, equal_nan=True)
            for a, b, taking in zip(forth, back, part, strict=True)
            if taking
        ]
        if not all(same):
            raise ConfigError(where, "a flat kind, which works element by element", "one that depends on places", hint)


def _run_once(kernel: NumpyKernel, operands: Sequence[Array], inputs: int) -> list[Array]:
    """Run a kernel on copies of its inputs, over outputs and scratch of other values, and return all operands."""
    made = [a.copy() if number < inputs else np.full_like(a, 3) for number, a in enumerate(operands)]
    scratch = [np.full(s.shape, 3, s.dtype) for s in kernel.scratch]
    with np.errstate(all="ignore"):
        kernel.run(*made, *scratch)
    return made
