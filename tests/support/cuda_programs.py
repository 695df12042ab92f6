"""Runs one operation by the CUDA backend's own kernels on the CPU, in the harness of operations.

An operation runs with the whole grid and, as one block goes through all, with the least; each from the first thread to
the last and from the last to the first. The bits of all four must be the same. Tensors in bfloat16 are arrays of
uint16, a type that no other tensor has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bathyal.engine.backends.backend import Kernel, Launch
from bathyal.engine.backends.cuda.kernel_program import KernelProgram
from bathyal.engine.backends.cuda.kernel_programs import PROGRAMS
from bathyal.engine.backends.cuda.op_request import CHANNELS_LAST, PLAIN, Operand, OpRequest
from bathyal.layers.graph import Graph, Op, Tensor, TensorSpec
from bathyal.layers.kinds import KINDS
from bathyal.memory.arena import Arena
from bathyal.memory.sizes import align_up
from tests.support.cuda_on_cpu import cuda_on_cpu
from tests.support.operation_harness import ALIGNMENT, GUARD_BYTES, OperationHarness, Result

Array = npt.NDArray[Any]

WAYS = ((False, False), (True, False), (False, True), (True, True))
"""(falling, whole grid)."""


def usual_layout(shape: Sequence[int]) -> str:
    """Images are channels-last in this backend."""
    return CHANNELS_LAST if len(shape) == 4 else PLAIN


def operand(spec: TensorSpec, layout: str | None = None) -> Operand:
    """An operand in a layout, by default the usual one."""
    return Operand(spec, usual_layout(spec.shape) if layout is None else layout)


def spec(array: Array) -> TensorSpec:
    """The shape and the element type that an array stands for."""
    return TensorSpec(array.shape, "bfloat16" if array.dtype == np.uint16 else str(array.dtype))


def stored_spec(spec: TensorSpec) -> TensorSpec:
    """The shape and numpy's element type of the array that stands for a tensor."""
    return TensorSpec(spec.shape, "uint16" if spec.dtype == "bfloat16" else spec.dtype)


def store(values: Array, layout: str) -> Array:
    """The elements of a logical tensor in the order in which they lie."""
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1) if layout == CHANNELS_LAST else values).reshape(-1)


def logical(flat: Array, shape: tuple[int, ...], layout: str) -> Array:
    """Undo `store`."""
    if layout != CHANNELS_LAST:
        return flat.reshape(shape)
    n, c, h, w = shape
    return np.ascontiguousarray(flat.reshape(n, h, w, c).transpose(0, 3, 1, 2))


def request_for(
    kind: str,
    inputs: Sequence[Array],
    attrs: Mapping[str, Any] | None = None,
    outputs: Sequence[TensorSpec] | None = None,
    layouts: Sequence[str] | None = None,
) -> OpRequest:
    """A request; outputs by the kind's shape rule, layouts of inputs and outputs as usual where they are not given."""
    attrs = attrs or {}
    if outputs is None:
        shapes = KINDS[kind].shapes
        assert shapes is not None, f"{kind} has no shape rule: give the outputs"
        outputs = shapes([spec(a) for a in inputs], attrs)
    specs = [*(spec(a) for a in inputs), *outputs]
    chosen = [usual_layout(s.shape) for s in specs] if layouts is None else layouts
    operands = tuple(Operand(s, layout) for s, layout in zip(specs, chosen, strict=True))
    return OpRequest(kind, operands[: len(inputs)], operands[len(inputs) :], attrs)


@dataclass(frozen=True)
class OneProgram:
    """What the harness takes for a backend: a program of kernels for whatever operation it is given.

    Attributes:
        program: that is run.
        falling: whether blocks and threads run from the last to the first.
        whole_grid: whether all run that the program asks for.
    """

    program: KernelProgram
    falling: bool
    whole_grid: bool

    def kernels(self, graph: Graph, op: Op) -> tuple[Kernel, ...]:
        """The program is the one kernel."""
        return (Kernel("own", self.program.workspace_bytes),)

    def bind(self, graph: Graph, op: Op, kernel: int, repeat: bool, arena: Arena) -> Launch:
        """Run the program on addresses of the arena."""
        kernels, base = cuda_on_cpu(), arena.base

        def launch(addresses: Sequence[int]) -> None:
            pointers = [base + address for address in addresses]
            kernels.run_at(self.program, pointers, falling=self.falling, whole_grid=self.whole_grid)

        return launch

    def encode(self, tensor: Tensor, values: Array) -> npt.NDArray[np.uint8]:
        """The bytes in the order of the tensor's layout."""
        assert (values.shape, str(values.dtype)) == (tensor.shape, tensor.dtype)
        return store(values, tensor.layout).view(np.uint8)

    def decode(self, tensor: Tensor, content: npt.NDArray[np.uint8]) -> Array:
        """Undo `encode`."""
        return logical(content.copy().view(tensor.dtype), tensor.shape, tensor.layout)


def compute(
    kind: str,
    inputs: Sequence[Array],
    attrs: Mapping[str, Any] | None = None,
    outputs: Sequence[TensorSpec] | None = None,
    *,
    layouts: Sequence[str] | None = None,
    alias: tuple[int, int] | None = None,
    updates: Sequence[int] = (),
) -> Result:
    """Run one kind of operation in all ways.

    Args:
        kind: its name.
        inputs: logical values.
        attrs: of the operation.
        outputs: needed for kinds without a shape rule.
        layouts: of inputs and outputs; as usual by default.
        alias: (output, input) at one address.
        updates: inputs that it overwrites.
    """
    request = request_for(kind, inputs, attrs, outputs, layouts)
    return run(PROGRAMS[kind](request), request, inputs, alias=alias, updates=updates)


def run(
    program: KernelProgram,
    request: OpRequest,
    inputs: Sequence[Array],
    *,
    alias: tuple[int, int] | None = None,
    updates: Sequence[int] = (),
) -> Result:
    """Run a program in all ways; the operands are those of `request`."""
    operands = (*request.inputs, *request.outputs)
    room = sum(align_up(stored_spec(o.spec).nbytes, ALIGNMENT) + GUARD_BYTES for o in operands)
    room += align_up(program.workspace_bytes, ALIGNMENT) + 2 * GUARD_BYTES
    results = []
    with Arena(room) as arena:
        for way in WAYS:
            harness = OperationHarness(OneProgram(program, *way), arena)
            graph, op = harness.operation(
                request.kind,
                inputs,
                request.attrs,
                [stored_spec(o.spec) for o in request.outputs],
                updates=updates,
                layouts=[o.layout for o in operands],
            )
            results.append(harness.run(graph, op, inputs, alias=alias))
    first, *others = results
    for way, found in zip(WAYS[1:], others, strict=True):
        for ours, exact in zip((*found.inputs, *found.outputs), (*first.inputs, *first.outputs), strict=True):
            assert ours.tobytes() == exact.tobytes(), f"{request.kind}: other bits with {way}"
    return first


def same_bits(ours: Array, exact: Array) -> None:
    """Check for equal values, zeros with their signs; a NaN may be any NaN."""
    assert ours.shape == exact.shape and ours.dtype == exact.dtype
    np.testing.assert_array_equal(ours, exact)
    if ours.dtype.kind == "f":
        number = ~np.isnan(ours)
        np.testing.assert_array_equal(np.signbit(ours)[number], np.signbit(exact)[number])
