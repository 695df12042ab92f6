"""The oneDNN backend: layouts, kernels and launches from the library; what it lacks, from the reference backend.

Primitives, memory objects and argument arrays are made once per signature, and a launch sets their addresses: a
network of 10,000 layers holds few of them. Results to the bit depend on the library's version, the instruction set
and the number of threads. A NaN is handed on as numpy and PyTorch do (`not_a_number.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from ....layers.graph import Graph, Op, Signature, Tensor
from ....layers.kinds import KINDS
from ....memory.aligned import ALIGNMENT, allocate_aligned
from ....memory.arena import host_memory
from ....memory.devices.host import HostMachine
from ....memory.errors import DataError
from ....memory.region import Region
from ..backend import Kernel, Launch
from ..fusion import IN_TRAINING, fuse
from ..reference import ReferenceBackend
from ..reference.launch import make_launch
from ..reference.numpy_kernel import NumpyKernel, OpSpec
from ..reference.registry import IMPLEMENTATIONS
from .flat import flat_spec, is_flat, require_flat
from .handles import (
    AVX2_BIT,
    QUERY_SCRATCHPAD,
    SCRATCHPAD,
    SOURCE,
    TARGET,
    Descriptor,
    Engine,
    Primitive,
    PrimitiveDescriptor,
)
from .layouts import PLAIN, Layouts
from .lowering import Lowering
from .recipe import Operand, PrimitiveRequest, Recipe
from .recipes import RECIPES, computes, is_fast
from .rows import is_row_padding, list_row_padding_kernels, row_padding_spec


class OneDnnBackend:
    """Computes with oneDNN on a CPU, in float32."""

    name = "onednn"
    machine = HostMachine()
    math = "float32"

    def __init__(self) -> None:
        """Load the library; raises DeviceError where there is none."""
        self._engine = Engine()
        self._layouts = Layouts(self._engine)
        self._reference = ReferenceBackend()
        self._kernels: dict[Signature, tuple[Kernel, ...]] = {}
        self._found: dict[tuple[Signature, bool], tuple[Recipe, list[PrimitiveDescriptor]]] = {}
        # Shared while somebody holds one: a kernel that was only timed leaves no primitive behind.
        self._launches: WeakValueDictionary[tuple[int, Signature, int, bool], Launch] = WeakValueDictionary()

    @staticmethod
    def computes(kind: str) -> bool:
        """Whether the library computes operations of a kind, or numpy does in its place."""
        return kind in RECIPES or ReferenceBackend.computes(kind)

    def lower(self, graph: Graph, state: Mapping[str, Tensor] | None = None) -> Graph:
        """Fuse operations, give every tensor its layout and insert conversions; raises ConfigError for float64."""
        # Before AVX2 the library has reference code alone for a batch norm with its ReLU.
        fused = fuse(graph, IN_TRAINING) if self._engine.isa & AVX2_BIT else graph
        return Lowering(fused, self._layouts, state).run()

    def kernels(self, graph: Graph, op: Op) -> tuple[Kernel, ...]:
        """List the library's implementations under the layouts of the graph, its first choice first."""
        own = self._is_own(graph, op)
        if not own and not self._keeps_layouts(graph, op):
            return self._reference.kernels(graph, op)
        signature = graph.signature(op)
        if signature not in self._kernels:
            if own:
                made = [Kernel(pd.implementation, pd.scratchpad_bytes) for pd in self._choices(graph, op, False)[1]]
            else:
                made = [Kernel(k.name, k.workspace_bytes) for k in self._describe_for_numpy(graph, op)[1]]
            self._kernels[signature] = tuple(made)
        return self._kernels[signature]

    def bind(self, graph: Graph, op: Op, kernel: int, repeat: bool, arena: Region) -> Launch:
        """Make what runs `op`; equal signatures share it, with its primitive, while one of its users lives."""
        own = self._is_own(graph, op)
        if not own and not self._keeps_layouts(graph, op):
            return self._reference.bind(graph, op, kernel, repeat, arena)
        repeat = repeat and bool(KINDS[op.kind].kept)
        # A launch of the library holds the machine address, one of numpy the memory: neither can be another arena's.
        memory = host_memory(arena)
        place = arena.base if own else id(memory)
        key = (place, graph.signature(op), kernel, repeat)
        launch = self._launches.get(key)
        if launch is None:
            if own:
                launch = self._launch(graph, op, kernel, repeat, arena.base)
            else:
                spec, kernels = self._describe_for_numpy(graph, op)
                operands = [(s.shape, np.dtype(s.dtype)) for s in (*spec.inputs, *spec.outputs)]
                launch = make_launch(kernels[kernel], operands, repeat, memory)
            self._launches[key] = launch
        return launch

    def _is_own(self, graph: Graph, op: Op) -> bool:
        """Whether the library computes `op`, and not numpy."""
        if is_row_padding(graph, op, self._layouts):
            return False
        inputs, outputs = ([graph.tensors[t].spec for t in ids] for ids in (op.inputs, op.outputs))
        return computes(op.kind, inputs, outputs, op.attrs) and is_fast(self._engine, op.kind)

    def _keeps_layouts(self, graph: Graph, op: Op) -> bool:
        """Whether numpy computes `op` over the layouts of its operands, and not on plain ones."""
        return is_flat(op, graph.tensors) or is_row_padding(graph, op, self._layouts)

    def _describe_for_numpy(self, graph: Graph, op: Op) -> tuple[OpSpec, tuple[NumpyKernel, ...]]:
        """Describe an operation that numpy computes over the layouts of its operands, and list its kernels."""
        if is_row_padding(graph, op, self._layouts):
            spec = row_padding_spec(graph, op, self._layouts)
            return spec, list_row_padding_kernels(spec)
        if not KINDS.is_own(op.kind) and graph.signature(op) not in self._kernels:
            require_flat(graph, op, IMPLEMENTATIONS[op.kind])
        spec = flat_spec(graph, op)
        return spec, IMPLEMENTATIONS[op.kind](spec)

    def _launch(self, graph: Graph, op: Op, kernel: int, repeat: bool, base: int) -> Launch:
        recipe, choices = self._choices(graph, op, repeat)
        chosen = choices[kernel]
        operands = self._operands(graph, op)
        arguments = {number: operands[position].layout for number, position in recipe.arguments.items()}
        places = tuple(recipe.arguments.values())
        scratchpad = chosen.descriptor(QUERY_SCRATCHPAD)
        if scratchpad is not None:
            arguments[SCRATCHPAD] = scratchpad
            places = (*places, -1)
        run = Primitive(self._engine, chosen, arguments).run

        def launch(addresses: Sequence[int]) -> None:
            run([base + addresses[place] for place in places])

        if recipe.make_around is None:
            return launch
        around = recipe.make_around(self._request(graph, op, repeat))

        def launch_and_look(addresses: Sequence[int]) -> None:
            around(partial(launch, addresses), [base + address for address in addresses])

        return launch_and_look

    def _operands(self, graph: Graph, op: Op) -> tuple[Operand, ...]:
        tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
        return tuple(Operand(t.spec, self._layouts.of(t.shape, t.layout)) for t in tensors)

    def _request(self, graph: Graph, op: Op, repeat: bool) -> PrimitiveRequest:
        operands, count = self._operands(graph, op), len(op.inputs)
        return PrimitiveRequest(self._engine, op.attrs, operands[:count], operands[count:], repeat)

    def _choices(self, graph: Graph, op: Op, repeat: bool) -> tuple[Recipe, list[PrimitiveDescriptor]]:
        key = (graph.signature(op), repeat)
        if key not in self._found:
            recipe = RECIPES[op.kind](self._request(graph, op, repeat))
            # What is not heavy has no choice: a repeated batch norm must be the same implementation as the first run.
            first = recipe.descriptor
            self._found[key] = (recipe, first.implementations() if KINDS[op.kind].heavy else [first])
        return self._found[key]

    def encode(self, tensor: Tensor, values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
        """Bring plain values into the layout of `tensor`; raises DataError for another shape or type."""
        content = self._reference.encode(tensor, values)
        if tensor.layout == PLAIN:
            return content
        layout = self._layouts.of(tensor.shape, tensor.layout)
        above = self._layouts.count_rows_above(tensor.shape, tensor.layout)
        if above is not None:
            taller = np.zeros(layout.shape, tensor.dtype)
            taller[:, :, above : above + tensor.shape[2]] = content.view(tensor.dtype).reshape(tensor.shape)
            content = taller.reshape(-1).view(np.uint8)
        return self._reorder(content, self._engine.describe_plain(layout.shape), layout)

    def decode(self, tensor: Tensor, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
        """Undo `encode`; raises DataError for another number of bytes."""
        if tensor.layout == PLAIN:
            return self._reference.decode(tensor, content)
        if content.shape != (tensor.nbytes,):
            raise DataError(tensor.name, f"{tensor.nbytes} bytes", f"shape {content.shape}")
        layout = self._layouts.of(tensor.shape, tensor.layout)
        found = self._reorder(content, layout, self._engine.describe_plain(layout.shape)).view(tensor.dtype)
        above = self._layouts.count_rows_above(tensor.shape, tensor.layout)
        if above is not None:
            found = found.reshape(layout.shape)[:, :, above : above + tensor.shape[2]].copy()
        return found.reshape(tensor.shape)

    def _reorder(self, content: npt.NDArray[np.uint8], source: Descriptor, target: Descriptor) -> npt.NDArray[np.uint8]:
        made = allocate_aligned(target.nbytes)
        if content.ctypes.data % ALIGNMENT:
            given = allocate_aligned(content.size)
            given[:] = content
            content = given
        descriptor = self._engine.reorder(source, target)
        arguments = {SOURCE: source, TARGET: target}
        addresses = [content.ctypes.data, made.ctypes.data]
        scratchpad = descriptor.descriptor(QUERY_SCRATCHPAD)
        scratch = allocate_aligned(0 if scratchpad is None else scratchpad.nbytes)
        if scratchpad is not None:
            arguments[SCRATCHPAD] = scratchpad
            addresses.append(scratch.ctypes.data)
        Primitive(self._engine, descriptor, arguments).run(addresses)
        return made

    def forget(self) -> None:
        """Let go the kernels of all operations and what the library has described; launches hold their own."""
        self._kernels.clear()
        self._found.clear()
        self._reference.forget()

    def close(self) -> None:
        """Do nothing: what the library holds goes with its objects."""

    def version(self) -> str:
        """Name the library's version and instruction set, and numpy's for what it lacks."""
        return f"{self._engine.version()}; {self._reference.version()}"
