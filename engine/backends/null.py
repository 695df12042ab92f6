"""A backend that computes nothing: for planning networks of any size and for tests of everything but arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...layers.graph import Graph, Op, Tensor
from ...memory.devices.host import HostMachine
from ...memory.region import Region
from .backend import Kernel, Launch


class NullBackend:
    """Has plain layouts, one kernel without workspace for everything, and launches that do nothing."""

    name = "null"
    machine = HostMachine()
    math = "float32"

    @staticmethod
    def computes(kind: str) -> bool:
        """Whether operations of a kind can be planned: all can."""
        return True

    def lower(self, graph: Graph, state: Mapping[str, Tensor] | None = None) -> Graph:
        """Return the graph as it is."""
        return graph

    def kernels(self, graph: Graph, op: Op) -> tuple[Kernel, ...]:
        """List the one kernel, which needs no workspace."""
        return (Kernel("null", 0),)

    def bind(self, graph: Graph, op: Op, kernel: int, repeat: bool, arena: Region) -> Launch:
        """Return something to call that does nothing."""
        return _nothing

    def encode(self, tensor: Tensor, values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Return zeros of the tensor's size."""
        return np.zeros(tensor.nbytes, np.uint8)

    def decode(self, tensor: Tensor, content: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return zeros of the tensor's shape."""
        return np.zeros(tensor.shape, tensor.dtype)

    def forget(self) -> None:
        """Do nothing, as nothing is kept."""

    def close(self) -> None:
        """Do nothing, as nothing is held."""

    def version(self) -> str:
        """Return the name of the backend, as nothing that changes computes here."""
        return "null"


def _nothing(addresses: Sequence[int]) -> None:
    return None
