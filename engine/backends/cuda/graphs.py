"""Which operations cuDNN computes, with which plans, and how they run.

For a convolution cuDNN ranks dozens of plans that differ in speed and workspace. A planner is told of the few among
which a choice makes sense: the first ones, and further on each that needs less workspace than all before it. cuDNN's
ranking is the order; what it lists as fallback it does not rank, so there less workspace comes first. All other
operations have one plan, the first that can be built, for each takes a compiler 0.3 to 3 s; a recomputed batch norm
must be the same plan in any case.

Not checked: that no operand overlaps another. cuDNN does not promise to run in place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from ....memory.errors import DeviceError, one_of
from ....memory.sizes import align_up
from ..backend import Kernel
from .convolution_graphs import conv2d, conv2d_backward_data, conv2d_backward_weights
from .cudnn_graph import CudnnGraph
from .cudnn_library import AddOperation, CudnnLibrary, EnginePlan
from .normalization_graphs import (
    batch_norm_backward,
    batch_norm_relu,
    batch_norm_relu_backward,
    batch_norm_training,
)
from .op_request import OpRequest

MATH = ("float32", "tf32", "bf16")
"""How a convolution multiplies: "float32" without tensor cores; "tf32" may round factors to 10 bits of mantissa; "bf16"
is "tf32" for images and weights in bfloat16, whose products are exact. Sums, statistics and the gradients of a batch
norm's scale and shift are in float32 throughout."""

MOST_PLANS = 8
LEADING_PLANS = 3
"""Of the ranking, taken whatever their workspace: the order is cuDNN's estimate, and the fastest may be among them."""

ALIGNMENT = 256
"""Of the workspace and of each vector of scratch within it, in bytes; operands need multiples of 16."""

CONVOLUTIONS: Mapping[str, Callable[[CudnnGraph, OpRequest], None]] = MappingProxyType(
    {
        "conv2d": conv2d,
        "conv2d_backward_data": conv2d_backward_data,
        "conv2d_backward_weights": conv2d_backward_weights,
    }
)
CUDNN_GRAPHS: Mapping[str, Callable[[CudnnGraph, OpRequest], None]] = MappingProxyType(
    {
        **CONVOLUTIONS,
        "batch_norm_training": batch_norm_training,
        "batch_norm_backward": batch_norm_backward,
        "batch_norm_relu": batch_norm_relu,
        "batch_norm_relu_backward": batch_norm_relu_backward,
    }
)
"""For each kind of operation how its graph is made. Fully connected layers are not here: without tensor cores cuDNN has
no engine for a product of matrices. Nor are ReLUs by themselves, for which it would need a compiler and a second place
for the output; nor a batch norm with a sum and a ReLU behind it, whose mask would take a byte an element where the
gradient of a sum and ReLU reads the output that is kept anyway."""


class GraphOperation:
    """An operation as cuDNN computes it. Plans are built when they are first asked for."""

    def __init__(self, library: CudnnLibrary, request: OpRequest, math: str) -> None:
        self._library = library
        self._request = request
        self._math = math
        self._strict = math == "float32" and request.kind in CONVOLUTIONS
        self._plans: tuple[EnginePlan, ...] = ()
        self._bound: dict[tuple[int, bool], _Bound] = {}

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The plans to choose from, the first being that of `kernels="fixed"`.

        The workspace of a batch norm has room behind the plan's own for four vectors of C float32 numbers, each rounded
        up to `ALIGNMENT`: two that cuDNN insists on writing, and mean and deviation of a repeated run.

        Raises:
            DeviceError: cuDNN has no engine; names the operation, its shapes and cuDNN's reason.
        """
        return tuple(Kernel(plan.name, _workspace_bytes(plan)) for plan in self._build())

    def execute(self, kernel: int, pointers: Sequence[int], workspace: int, handle: Any, repeat: bool = False) -> None:
        """Queue the operation on the stream of `handle`.

        Args:
            kernel: place in `kernels`.
            pointers: device addresses of inputs, then outputs; multiples of 16.
            workspace: device address of at least the kernel's workspace; a multiple of `ALIGNMENT`.
            handle: of the library's `open_handle`.
            repeat: the statistics of a batch norm are there already and stay as they are.
        """
        bound = self._bound.get((kernel, repeat))
        if bound is None:
            bound = self._bound[kernel, repeat] = _Bound(self._build()[kernel], repeat)
        bound.run(pointers, workspace, handle)

    @property
    def _add_operation(self) -> AddOperation:
        return partial(_draw, self._request)

    def _build(self) -> tuple[EnginePlan, ...]:
        if not self._plans:
            reasons: list[str] = []
            if self._request.kind in CONVOLUTIONS:
                self._plans = choose(self._convolution(reasons))
            if not self._plans:
                self._plans = tuple(_first(self._try_modes(("A", "FALLBACK"), True, reasons)))
            if not self._plans:
                raise self._refuse(reasons[0] if reasons else "no plan that can be built")
        return self._plans

    def _convolution(self, reasons: list[str]) -> Iterator[EnginePlan]:
        """Ranked plans, then fallbacks; none that has to be compiled, as dozens of them would be built to choose from."""
        yield from self._try_modes(("A",), False, reasons)
        yield from sorted(self._try_modes(("FALLBACK",), False, reasons), key=lambda plan: plan.workspace_bytes)

    def _try_modes(self, modes: Sequence[str], compiled: bool, reasons: list[str]) -> Iterator[EnginePlan]:
        try:
            yield from self._library.plans(self._add_operation, self._strict, modes, compiled)
        except DeviceError as error:
            reasons.append(error.actual)

    def _refuse(self, reason: str) -> DeviceError:
        request = self._request
        inputs, outputs = (
            ", ".join(f"{o.spec.dtype}{list(o.spec.shape)}{o.layout}" for o in operands)
            for operands in (request.inputs, request.outputs)
        )
        return DeviceError(
            f"{request.kind} of {inputs} → {outputs} with {dict(request.attrs)}",
            f"an engine of {self._library.version()} for {self._math}",
            reason,
        )


class Graphs:
    """The operations of a session: each signature once.

    Args:
        library: of the device.
        math: one of `MATH`.

    Raises:
        ConfigError: there is no such math.
    """

    def __init__(self, library: CudnnLibrary, math: str = "float32") -> None:
        self._library = library
        self._math = one_of("math", math, MATH)
        self._operations: dict[Hashable, GraphOperation] = {}

    def operation(self, request: OpRequest) -> GraphOperation:
        """The operation of a request whose kind is in `CUDNN_GRAPHS`; nothing is built yet."""
        key = (request.kind, request.inputs, request.outputs, tuple(sorted(request.attrs.items())))
        if key not in self._operations:
            self._operations[key] = GraphOperation(self._library, request, self._math)
        return self._operations[key]


def choose(ranked: Iterable[EnginePlan]) -> tuple[EnginePlan, ...]:
    """Of plans in order of speed those to choose from: at most `MOST_PLANS`, with the least workspace among them.

    No more of them are drawn, and so built, than can make a difference.
    """
    chosen: list[EnginePlan] = []
    names: set[str] = set()
    for plan in ranked:
        if plan.name in names:
            continue
        names.add(plan.name)
        if len(chosen) < LEADING_PLANS or plan.workspace_bytes < min(p.workspace_bytes for p in chosen):
            chosen.append(plan)
        if len(chosen) >= LEADING_PLANS and min(p.workspace_bytes for p in chosen) == 0:
            break
    if len(chosen) > MOST_PLANS:
        # Behind the leading ones workspaces only fall, so the last needs least.
        chosen = [*chosen[: MOST_PLANS - 1], chosen[-1]]
    return tuple(chosen)


class _Bound:
    """A plan, and where the addresses of its tensors come from."""

    def __init__(self, plan: EnginePlan, repeat: bool) -> None:
        graph = plan.graph
        moved = graph.kept if repeat else []
        self._plan = plan
        self._operands = tuple((n, place) for n, place in graph.operands.items() if n not in moved)
        self._scalars = (ctypes.c_float * len(graph.scalars))(*graph.scalars.values())
        host = ctypes.addressof(self._scalars)
        self._host = {number: host + 4 * place for place, number in enumerate(graph.scalars)}
        self._offsets: dict[int, int] = {}
        offset, size = align_up(plan.workspace_bytes, ALIGNMENT), _vector_bytes(graph)
        for number in (*graph.scratch, *moved):
            self._offsets[number] = offset
            offset += size

    def run(self, pointers: Sequence[int], workspace: int, handle: Any) -> None:
        addresses = {number: pointers[place] for number, place in self._operands}
        addresses.update(self._host)
        for number, offset in self._offsets.items():
            addresses[number] = workspace + offset
        self._plan.run(addresses, workspace, handle)


def _draw(request: OpRequest, graph: CudnnGraph) -> None:
    CUDNN_GRAPHS[request.kind](graph, request)


def _first(plans: Iterator[EnginePlan]) -> Iterator[EnginePlan]:
    for plan in plans:
        yield plan
        return


def _vector_bytes(graph: CudnnGraph) -> int:
    """Bytes of one vector of scratch: all that are redirected have the shape of those that are discarded."""
    return align_up(max(graph.scratch.values(), default=0), ALIGNMENT)


def _workspace_bytes(plan: EnginePlan) -> int:
    vectors = len(plan.graph.scratch) + len(plan.graph.kept)
    return (
        align_up(plan.workspace_bytes, ALIGNMENT) + vectors * _vector_bytes(plan.graph)
        if vectors
        else plan.workspace_bytes
    )
