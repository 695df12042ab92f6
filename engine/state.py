"""Parameters, running statistics and momentum in the arena: their first values, reading, writing, and their digest.

One tensor at a time passes through ordinary memory, so that a network larger than that can be filled and saved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layers.graph import STATE, Graph, Role, Tensor
from ..layers.initializers import initialize
from ..memory.device import Device
from ..memory.errors import DataError
from ..scheduler.placement import StateLayout
from .backends.backend import Backend

Array = npt.NDArray[Any]


class State:
    """The tensors that live from step to step."""

    def __init__(self, graph: Graph, layout: StateLayout, backend: Backend, device: Device) -> None:
        self.tensors: dict[str, Tensor] = {t.name: t for t in graph.with_role(*STATE)}
        self._layout = layout
        self._backend = backend
        self._device = device

    def initialize(self, seed: int) -> None:
        """Give every tensor its first value; momentum starts at 0."""
        for tensor in self.tensors.values():
            if tensor.initializer is None:
                values: Array = np.zeros(tensor.shape, tensor.dtype)
            else:
                values = initialize(tensor.initializer, tensor.shape, tensor.dtype, seed=seed, name=tensor.name)
            self.write(tensor.name, values)

    def write(self, name: str, values: Array) -> None:
        """Overwrite one tensor with plain values.

        Raises:
            DataError: no such tensor, or another shape.
        """
        tensor = self._tensor(name)
        if values.shape != tensor.shape:
            raise DataError(name, f"values of shape {tensor.shape}", f"shape {values.shape}")
        content = self._backend.encode(tensor, np.ascontiguousarray(values, tensor.dtype))
        self._device.upload(self._device.inward, self._layout.addresses[name], content)
        self._device.inward.synchronize()

    def read(self, name: str) -> Array:
        """A copy of one tensor's plain values; raises DataError when there is no such tensor."""
        tensor = self._tensor(name)
        content = np.empty(tensor.nbytes, np.uint8)
        self._device.download(self._device.out, self._layout.addresses[name], content)
        self._device.out.synchronize()
        return self._backend.decode(tensor, content)

    def names(self, *roles: Role) -> Iterator[str]:
        """Names of the tensors of the given roles; of all without."""
        return (t.name for t in self.tensors.values() if not roles or t.role in roles)

    def weights_sha256(self) -> str:
        """Digest over names and plain values of parameters and running statistics, in order of their names."""
        digest = hashlib.sha256()
        for name in sorted(self.names(Role.PARAMETER, Role.BUFFER)):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(self.read(name)).tobytes())
        return digest.hexdigest()

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise DataError(name, "the name of a parameter, statistic or momentum", "no such tensor")
        return self.tensors[name]
