"""The numpy backend: plain layouts, kernels from the registry, launches that view the arena.

Results to the bit depend on numpy, its BLAS library, the instruction set and the number of threads, and on nothing
else: not on addresses, not on what memory held before, not on what ran earlier. Labels and shapes are not checked
here; the graph and the loader of the data have done so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_info

from ....layers.graph import Graph, Op, Signature, Tensor
from ....memory.arena import host_memory
from ....memory.devices.host import HostMachine
from ....memory.errors import DataError
from ....memory.region import Region
from ..backend import Kernel, Launch
from .launch import make_launch
from .numpy_kernel import Array, NumpyKernel, OpSpec
from .registry import IMPLEMENTATIONS


class ReferenceBackend:
    """Computes with numpy, in float32 or float64, on any machine."""

    name = "reference"
    machine = HostMachine()
    math = "float32"

    def __init__(self) -> None:
        self._kernels: dict[Signature, tuple[NumpyKernel, ...]] = {}
        # Launches are shared while somebody holds one; they hold their arena's memory, so its id is not given twice.
        self._launches: WeakValueDictionary[tuple[int, Signature, int, bool], Launch] = WeakValueDictionary()

    @staticmethod
    def computes(kind: str) -> bool:
        """Whether there are numpy kernels for operations of a kind."""
        return kind in IMPLEMENTATIONS

    def lower(self, graph: Graph, state: Mapping[str, Tensor] | None = None) -> Graph:
        """Return the graph as it is: all layouts are plain."""
        return graph

    def kernels(self, graph: Graph, op: Op) -> tuple[Kernel, ...]:
        """List the kernels of `op`; the first is the one of `kernels="fixed"`.

        Those of a convolution give the same bits, except "rows", which comes last.
        """
        return tuple(Kernel(v.name, v.workspace_bytes) for v in self._of(graph, op, graph.signature(op)))

    def bind(self, graph: Graph, op: Op, kernel: int, repeat: bool, arena: Region) -> Launch:
        """Make what runs `op`; equal signatures share it while one of its users lives."""
        signature = graph.signature(op)
        variant = self._of(graph, op, signature)[kernel]
        repeat = repeat and variant.repeat is not None
        memory = host_memory(arena)
        key = (id(memory), signature, kernel, repeat)
        launch = self._launches.get(key)
        if launch is None:
            operands = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
            launch = make_launch(variant, [(t.shape, np.dtype(t.dtype)) for t in operands], repeat, memory)
            self._launches[key] = launch
        return launch

    def _of(self, graph: Graph, op: Op, signature: Signature) -> tuple[NumpyKernel, ...]:
        found = self._kernels.get(signature)
        if found is None:
            inputs, outputs = (tuple(graph.tensors[t].spec for t in ids) for ids in (op.inputs, op.outputs))
            found = IMPLEMENTATIONS[op.kind](OpSpec(inputs, outputs, op.attrs))
            self._kernels[signature] = found
        return found

    def encode(self, tensor: Tensor, values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
        """Return the bytes of `values`, not copied where they are contiguous and of the tensor's type.

        Raises:
            DataError: another shape, or a type that would lose more than digits.
        """
        if values.shape != tensor.shape:
            raise DataError(tensor.name, f"values of shape {tensor.shape}", f"shape {values.shape}")
        if not np.can_cast(values.dtype, tensor.dtype, "same_kind"):
            raise DataError(tensor.name, f"values of type {tensor.dtype}", str(values.dtype))
        return np.ascontiguousarray(values, tensor.dtype).reshape(-1).view(np.uint8)

    def decode(self, tensor: Tensor, content: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Copy `content` as values of `tensor.shape`.

        Raises:
            DataError: not as many bytes as the tensor has.
        """
        if content.shape != (tensor.nbytes,):
            raise DataError(tensor.name, f"{tensor.nbytes} bytes", f"shape {content.shape}")
        values: Array = np.empty(tensor.shape, tensor.dtype)
        values.reshape(-1).view(np.uint8)[:] = content
        return values

    def forget(self) -> None:
        """Let go the kernels of all operations; launches hold their own."""
        self._kernels.clear()

    def close(self) -> None:
        """Do nothing, as nothing is held."""

    def version(self) -> str:
        """Name numpy, its BLAS library with architecture and threads, and the instruction sets in use."""
        found = [info for info in threadpool_info() if info["user_api"] == "blas"]
        # Others come and go with whatever else is imported, and compute nothing here.
        beside_numpy = Path(np.__file__).resolve().parent.with_name("numpy.libs")
        own = [info for info in found if Path(info["filepath"]).resolve().parent == beside_numpy]
        libraries = sorted(
            f"{info['internal_api']} {info['version']} {info.get('architecture', '')} {info['num_threads']} threads"
            for info in own or found
        )
        configuration: Any = np.show_config(mode="dicts")
        simd = configuration.get("SIMD Extensions", {})
        sets = "+".join((*simd.get("baseline", []), *simd.get("found", [])))
        return "; ".join((f"numpy {np.__version__}", *libraries, sets))
