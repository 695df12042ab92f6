"""One way to compute an operation in numpy: its name, its scratch arrays, and the function that runs.

A function gets the arrays of the inputs, the outputs and the scratch, in this order. It allocates no array of its own:
whatever it needs beyond a few vectors of views is scratch, so that the plan knows every byte. Scratch holds garbage
when the function starts, and so do outputs, but for those that are kept. Nothing here checks shapes; the graph has done
so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ....layers.graph import TensorSpec
from ....memory.sizes import align_up

Array = npt.NDArray[Any]
Run = Callable[..., None]

ALIGNMENT_BYTES = 64
"""Scratch arrays begin at multiples of this, so that results do not depend on where they lie."""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """What an implementation is told of an operation: everything that its signature says, and nothing of the graph.

    Attributes:
        inputs: shapes and element types of the inputs, in order.
        outputs: those of the outputs.
        attrs: the attributes that the layer gave to the operation.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Mapping[str, Any]

    @property
    def dtype(self) -> str:
        """Element type of the first input: the one that the operation computes in."""
        return self.inputs[0].dtype


@dataclass(frozen=True, slots=True)
class NumpyKernel:
    """One way to compute an operation with numpy.

    Attributes:
        name: unique among the kernels of the operation.
        run: called with the arrays of inputs, outputs and scratch; it writes the outputs, and the inputs that the
            operation updates.
        scratch: shapes and types of the arrays that lie in the workspace.
        repeat: runs instead where the kept outputs are there already and must only be read; None where `run` keeps
            none.
    """

    name: str
    run: Run
    scratch: tuple[TensorSpec, ...] = ()
    repeat: Run | None = None

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each scratch array begins, from the start of the workspace."""
        ends = [0]
        for spec in self.scratch:
            ends.append(align_up(ends[-1] + spec.nbytes, ALIGNMENT_BYTES))
        return tuple(ends[:-1])

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all scratch arrays."""
        return self.offsets[-1] + self.scratch[-1].nbytes if self.scratch else 0


Implementation = Callable[[OpSpec], tuple[NumpyKernel, ...]]
"""Lists the kernels of an operation; the first is the one of `kernels="fixed"`.

It is called once for each signature, and works out beforehand whatever it can, so that a run only computes.
"""


@dataclass(frozen=True, slots=True)
class PlainFunction:
    """An implementation of one kernel without scratch, whose function does not depend on shapes.

    Attributes:
        run: called with the arrays of inputs and outputs, and with the attributes of the operation by keyword.
    """

    run: Run

    def __call__(self, op: OpSpec) -> tuple[NumpyKernel, ...]:
        """List the one kernel."""
        return (NumpyKernel("whole", partial(self.run, **op.attrs) if op.attrs else self.run),)


def float64(*shape: int) -> TensorSpec:
    """Describe a scratch array of float64."""
    return TensorSpec(shape, "float64")


def store(target: Array, values: Array | float) -> None:
    """Copy values, rounded to the type of `target`."""
    np.copyto(target, values, casting="same_kind")
