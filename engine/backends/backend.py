"""What a backend is to the engine.

A backend knows nothing of plans: it says how many bytes each tensor takes in its layout, which kernels an operation
has and with how much workspace, and gives back something to call with arena addresses. It allocates no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...layers.graph import Graph, Op, Tensor
from ...memory.devices.device import Machine
from ...memory.region import Region

Launch = Callable[[Sequence[int]], None]
"""Runs one operation; called with the addresses of its inputs, its outputs and its workspace, in this order."""

NO_WORKSPACE = 0
"""The address passed where a kernel needs no workspace."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to compute an operation.

    Attributes:
        name: unique among the kernels of the operation.
        workspace_bytes: scratch memory that it needs while it runs.
    """

    name: str
    workspace_bytes: int


MEMBERS = (
    *("name", "machine", "computes", "lower", "kernels", "bind", "encode", "decode", "version", "forget", "close"),
    "math",
)
"""What an object must have to serve as a `Backend`."""


class Backend(Protocol):
    """A library that computes.

    Attributes:
        name: by which it is chosen.
        machine: where its operands lie.
        math: how it rounds the factors of products: "float32" where it multiplies as the type of the numbers says.
    """

    name: str

    @property
    def machine(self) -> Machine:
        """Where its operands lie."""

    @property
    def math(self) -> str:
        """How it rounds the factors of products; what it was asked for, or it is not taken."""

    @staticmethod
    def computes(kind: str) -> bool:
        """Whether operations of a kind have a kernel, of the backend's own or of the backend that it falls back on."""

    def lower(self, graph: Graph, state: Mapping[str, Tensor] | None = None) -> Graph:
        """Fix all layouts: return the graph with the bytes of every tensor, and with conversions as operations.

        Operations may be fused into kinds of the backend's own. What the host feeds, the state and the outputs keep
        their names.

        Args:
            graph: of one program.
            state: the state as another graph that this backend has lowered lays it out, by name: the state of `graph`
                must come out with the same layouts and bytes, with conversions where its operations want others. None
                where the layouts of the state are free.
        """

    def kernels(self, graph: Graph, op: Op) -> tuple[Kernel, ...]:
        """List the kernels of `op` in a lowered graph; the first is the one of `kernels="fixed"`."""

    def bind(self, graph: Graph, op: Op, kernel: int, repeat: bool, arena: Region) -> Launch:
        """Make what runs `op` with its kernel number `kernel`; equal signatures may share it.

        With `repeat` the operation has run before in this step: the outputs that its kind declares as kept are read,
        not written.
        """

    def encode(self, tensor: Tensor, values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
        """Bring plain values of `tensor.shape` into the backend's layout: `tensor.nbytes` bytes."""

    def decode(self, tensor: Tensor, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
        """Undo `encode`."""

    def version(self) -> str:
        """Name the library, its version and the instruction set, on which results depend to the bit."""

    def forget(self) -> None:
        """Let go what is kept about operations that were asked for, as a program has left; what is bound stays."""

    def close(self) -> None:
        """Give back what the library holds; nothing may be under way. Closing twice is allowed."""
