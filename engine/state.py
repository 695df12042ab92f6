"""Parameters, running statistics and state of the optimizer: first values, reading, writing, and their digest.

They lie in the arena or in the tier, as the layout says. Tensors are named, read and written whole, also those that are
held in slabs. In pieces, one slab at a time passes through ordinary memory, and otherwise one tensor, so that a network
larger than that can be filled and saved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layers.graph import STATE, Graph, Role, Tensor, TensorSpec
from ..layers.initializers import initialize_rows
from ..memory.aligned import allocate_aligned
from ..memory.devices.device import Device
from ..memory.errors import DataError
from ..memory.tiers.tier import Tier
from ..scheduler.plan.state_layout import StateLayout
from .backends.backend import Backend

Array = npt.NDArray[Any]


class State:
    """The tensors that live from step to step.

    Attributes:
        tensors: by name; one for all slabs of a large parameter, with the name and the shape of the whole.
    """

    def __init__(
        self, graph: Graph, layout: StateLayout, backend: Backend, device: Device, tier: Tier | None = None
    ) -> None:
        self._parts: dict[str, list[Tensor]] = {}
        for tensor in graph.with_role(*STATE):
            self._parts.setdefault(tensor.part.whole if tensor.part else tensor.name, []).append(tensor)
        for parts in self._parts.values():
            parts.sort(
                key=lambda t: t.part.first if t.part else 0
            )  # the optimizer's are made in the order of the updates
        self.tensors: dict[str, Tensor] = {name: _whole(parts[0]) for name, parts in self._parts.items()}
        self._layout = layout
        self._backend = backend
        self._device = device
        self._tier = tier

    def initialize(self, seed: int) -> None:
        """Give every tensor its first value: 0 where it has no initializer, as most that an optimizer keeps."""
        for name, tensor in self.tensors.items():
            rows = self.rows(name)
            if tensor.initializer is None:
                pieces: Iterator[Array] = (np.zeros((count, *tensor.shape[1:]), tensor.dtype) for count in rows)
            else:
                pieces = initialize_rows(tensor.initializer, tensor.shape, tensor.dtype, rows, seed=seed, name=name)
            self.write_pieces(name, pieces)

    def rows(self, name: str) -> tuple[int, ...]:
        """Rows of each piece in which a tensor is read and written: of its slabs, or of the whole.

        Raises:
            DataError: no such tensor.
        """
        return tuple(part.shape[0] for part in self._of(name))

    def write(self, name: str, values: Array) -> None:
        """Overwrite one tensor with plain values.

        Raises:
            DataError: no such tensor, or another shape.
        """
        parts, shape = self._of(name), self.tensors[name].shape
        if values.shape != shape:
            raise DataError(name, f"values of shape {shape}", f"shape {values.shape}")
        if len(parts) == 1:
            self.write_pieces(name, (values,))
        else:
            firsts = [part.part.first for part in parts if part.part]
            self.write_pieces(name, (values[a:][: p.shape[0]] for a, p in zip(firsts, parts, strict=True)))

    def write_pieces(self, name: str, pieces: Iterable[Array]) -> None:
        """Overwrite one tensor with plain values in consecutive pieces of `rows(name)` rows, drawn one by one.

        Raises:
            DataError: no such tensor, or a piece of another shape.
        """
        for part, values in zip(self._of(name), pieces, strict=True):
            if values.shape != part.shape:
                raise DataError(part.name, f"values of shape {part.shape}", f"shape {values.shape}")
            content = self._backend.encode(part, np.ascontiguousarray(values, part.dtype))
            self._put(part, content)

    def read(self, name: str) -> Array:
        """A copy of one tensor's plain values; raises DataError when there is no such tensor."""
        pieces = list(self.pieces(name))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def pieces(self, name: str) -> Iterator[Array]:
        """Copies of one tensor's plain values in consecutive pieces of `rows(name)` rows, made one by one.

        Raises:
            DataError: no such tensor.
        """
        for part in self._of(name):
            yield self._backend.decode(part, self._get(part))

    def _put(self, part: Tensor, content: npt.NDArray[np.uint8]) -> None:
        if part.name in self._layout.outside:
            assert self._tier is not None, "what is outside has a tier"
            self._tier.write(self._layout.outside[part.name], content.reshape(-1).view(np.uint8))
        else:
            self._device.upload(self._device.inward, self._layout.addresses[part.name], content)
            self._device.inward.synchronize()

    def _get(self, part: Tensor) -> npt.NDArray[np.uint8]:
        content = allocate_aligned(part.nbytes)
        if part.name in self._layout.outside:
            assert self._tier is not None, "what is outside has a tier"
            self._tier.read(self._layout.outside[part.name], content)
        else:
            self._device.download(self._device.out, self._layout.addresses[part.name], content)
            self._device.out.synchronize()
        return content

    def names(self, *roles: Role) -> Iterator[str]:
        """Names of the tensors of the given roles; of all without."""
        return (name for name, t in self.tensors.items() if not roles or t.role in roles)

    def weights_sha256(self) -> str:
        """Digest over names and plain values of parameters and running statistics, in order of their names."""
        digest = hashlib.sha256()
        for name in sorted(self.names(Role.PARAMETER, Role.BUFFER)):
            digest.update(name.encode())
            for piece in self.pieces(name):
                digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def _of(self, name: str) -> list[Tensor]:
        if name not in self._parts:
            raise DataError(name, "the name of a parameter, a statistic or a slot of the optimizer", "no such tensor")
        return self._parts[name]


def _whole(tensor: Tensor) -> Tensor:
    """The tensor that `tensor` is a slab of, in plain layout; itself where it is whole."""
    if tensor.part is None:
        return tensor
    spec = TensorSpec(tensor.part.shape, tensor.dtype)
    return replace(tensor, name=tensor.part.whole, shape=spec.shape, nbytes=spec.nbytes, layout="", part=None)
