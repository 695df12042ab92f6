"""The CUDA backend: which kernels an operation has on a GPU, and what runs them on addresses of the arena.

Launches are shared by operations of one signature while somebody holds one. Results to the bit depend on the versions
of the libraries and on the device; a plan of cuDNN that adds up in a varying order is never among the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from ....layers.graph import Graph, Op, Signature, Tensor
from ....layers.kinds import KINDS
from ....memory.devices.device import Machine
from ....memory.errors import DataError, unreachable
from ....memory.region import Region
from ..backend import Kernel, Launch
from ..reference import ReferenceBackend
from .bfloat16 import from_bfloat16, to_bfloat16
from .graphs import CUDNN_GRAPHS
from .kernel_programs import PROGRAMS
from .library import Launcher, Library
from .lowering import lower
from .op_request import CHANNELS_LAST, OpRequest, operand
from .parts import PRODUCTS, Part, Product, ProgramPart, parts

FIRST_LAST = (0, 2, 3, 1)
"""Axes (N, C, H, W) in the order in which channels-last memory holds them."""
LAST_FIRST = (0, 3, 1, 2)


class CudaBackend:
    """Computes on a GPU, in float32 or with images in bfloat16.

    Args:
        library: that runs kernels.
        machine: whose memory they work on.
        math: "bf16" stores images in 16 bits; all else stores float32.
    """

    name = "cuda"

    def __init__(self, library: Library, machine: Machine, math: str = "float32") -> None:
        self.machine = machine
        self.math = math
        self._library = library
        self._plain = ReferenceBackend()
        self._parts: dict[Signature, tuple[Part, ...]] = {}
        self._kernels: dict[Signature, tuple[Kernel, ...]] = {}
        self._launches: WeakValueDictionary[tuple[int, int, Signature, int, bool], Launch] = WeakValueDictionary()

    @staticmethod
    def computes(kind: str) -> bool:
        """Whether cuDNN, cuBLAS or a kernel of the backend's own computes a kind; there is no fallback."""
        return kind in PROGRAMS or kind in PRODUCTS or kind in CUDNN_GRAPHS

    def lower(self, graph: Graph, state: Mapping[str, Tensor] | None = None) -> Graph:
        """Fuse operations and give every tensor its layout, by its number of axes alone.

        Raises:
            ConfigError: the graph computes in another type than float32.
        """
        return lower(graph, self.math)

    def kernels(self, graph: Graph, op: Op) -> tuple[Kernel, ...]:
        """List the plans of cuDNN, its first choice first, or the one way to compute anything else.

        Raises:
            DeviceError: nothing here computes the operation.
        """
        signature = graph.signature(op)
        if signature not in self._kernels:
            made = self._of(graph, op, signature)
            least = max((self._workspace_bytes(part) for part in made), default=0)
            choices = next(
                (self._library.graph_kernels(p) for p in made if isinstance(p, OpRequest)), (Kernel("own", 0),)
            )
            self._kernels[signature] = tuple(Kernel(k.name, max(k.workspace_bytes, least)) for k in choices)
        return self._kernels[signature]

    def _workspace_bytes(self, part: Part) -> int:
        match part:
            case OpRequest():
                return 0  # each of its kernels has its own
            case Product():
                return self._library.product_workspace_bytes
            case ProgramPart():
                return part.program.workspace_bytes
            case _:
                unreachable(part)

    def bind(self, graph: Graph, op: Op, kernel: int, repeat: bool, arena: Region) -> Launch:
        """Make what launches `op` in the arena's stream; equal signatures share it while one of its users lives.

        Raises:
            DeviceError: nothing here computes the operation.
        """
        signature = graph.signature(op)
        repeat = repeat and bool(KINDS[op.kind].kept)
        key = (arena.base, arena.stream, signature, kernel, repeat)
        launch = self._launches.get(key)
        if launch is None:
            launchers = [self._launcher(p, kernel, repeat, arena.stream) for p in self._of(graph, op, signature)]
            launch = self._launches[key] = _launch(launchers, arena.base)
        return launch

    def _launcher(self, part: Part, kernel: int, repeat: bool, stream: int) -> Launcher:
        match part:
            case OpRequest():
                return self._library.graph(part, kernel, repeat, stream)
            case Product():
                return self._library.product(part, stream)
            case ProgramPart():
                return self._library.program(part.program, part.operands, stream)
            case _:
                unreachable(part)

    def _of(self, graph: Graph, op: Op, signature: Signature) -> tuple[Part, ...]:
        found = self._parts.get(signature)
        if found is None:
            inputs, outputs = (tuple(operand(graph.tensors[t]) for t in ids) for ids in (op.inputs, op.outputs))
            found = self._parts[signature] = parts(OpRequest(op.kind, inputs, outputs, op.attrs))
        return found

    def encode(self, tensor: Tensor, values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
        """Bring plain values into the layout of `tensor`; raises DataError for another shape or type."""
        plain: npt.NDArray[Any] = self._plain.encode(tensor, values).view(tensor.dtype).reshape(tensor.shape)
        stored = operand(tensor)
        if stored.layout == CHANNELS_LAST:
            plain = plain.transpose(FIRST_LAST)
        if stored.spec.dtype == "bfloat16":
            plain = to_bfloat16(plain)
        return np.ascontiguousarray(plain).reshape(-1).view(np.uint8)

    def decode(self, tensor: Tensor, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
        """Undo `encode`, but for what it rounded; raises DataError for another number of bytes."""
        if content.shape != (tensor.nbytes,):
            raise DataError(tensor.name, f"{tensor.nbytes} bytes", f"shape {content.shape}")
        stored = operand(tensor)
        narrow = stored.spec.dtype == "bfloat16"
        plain: npt.NDArray[Any]
        values: npt.NDArray[Any] = from_bfloat16(content.view(np.uint16)) if narrow else content.view(tensor.dtype)
        if stored.layout != CHANNELS_LAST:
            plain = values.reshape(tensor.shape).copy()
            return plain
        n, c, h, w = tensor.shape
        plain = np.ascontiguousarray(values.reshape(n, h, w, c).transpose(LAST_FIRST))
        return plain

    def forget(self) -> None:
        """Let go what operations are made of and their kernels; launches hold their own."""
        self._parts.clear()
        self._kernels.clear()
        self._plain.forget()

    def close(self) -> None:
        """Give the libraries' handles back."""
        self._library.close()

    def version(self) -> str:
        """Name the libraries, their versions and the device."""
        return self._library.version()


def _launch(launchers: Sequence[Launcher], base: int) -> Launch:
    """Make one call that launches all parts of an operation."""

    def launch(addresses: Sequence[int]) -> None:
        pointers = [base + address for address in addresses]
        for launcher in launchers:
            launcher(pointers, pointers[-1])

    return launch
