"""Runs one operation by the CUDA backend's own kernels on the CPU, and checks how they treat memory.

Operands lie at multiples of 64 bytes with guard bytes right behind each; all but the inputs is NaN before. An operation
runs with the whole grid and, as one block goes through all, with the least; each from the first thread to the last and
from the last to the first. The bits of all four must be the same, the guards and all inputs that it does not overwrite
as before. Tensors in bfloat16 are arrays of uint16, a type that no other tensor has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bathyal.engine.backends.cuda.kernel_program import KernelProgram
from bathyal.engine.backends.cuda.kernel_programs import PROGRAMS
from bathyal.engine.backends.cuda.op_request import CHANNELS_LAST, PLAIN, Operand, OpRequest
from bathyal.layers.graph import TensorSpec
from bathyal.layers.kinds import KINDS
from tests.support.cuda_on_cpu import CudaOnCpu, cuda_on_cpu

Array = npt.NDArray[Any]

GUARD_BYTES = 64
POISON = 0xFF
"""Every float of these bytes is a NaN."""
WAYS = ((False, False), (True, False), (False, True), (True, True))
"""(falling, whole grid)."""


@dataclass(frozen=True)
class Result:
    """What a run left behind: outputs, and the inputs afterwards."""

    outputs: list[Array]
    inputs: list[Array]


def usual_layout(shape: Sequence[int]) -> str:
    """Images are channels-last in this backend."""
    return CHANNELS_LAST if len(shape) == 4 else PLAIN


def operand(spec: TensorSpec, layout: str | None = None) -> Operand:
    return Operand(spec, usual_layout(spec.shape) if layout is None else layout)


def spec(array: Array) -> TensorSpec:
    return TensorSpec(array.shape, "bfloat16" if array.dtype == np.uint16 else str(array.dtype))


def numpy_type(spec: TensorSpec) -> np.dtype[Any]:
    """What an array of such a tensor's elements has."""
    return np.dtype(np.uint16 if spec.dtype == "bfloat16" else spec.dtype)


def nbytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * numpy_type(spec).itemsize


def stored(values: Array, layout: str) -> Array:
    """The elements of a logical tensor in the order in which they lie."""
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1) if layout == CHANNELS_LAST else values).reshape(-1)


def logical(flat: Array, shape: tuple[int, ...], layout: str) -> Array:
    """Undo `stored`."""
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
    kernels = cuda_on_cpu()
    (first, after), *others = [_once(kernels, program, request, inputs, alias, updates, way) for way in WAYS]
    for way, (found, _) in zip(WAYS[1:], others, strict=True):
        np.testing.assert_array_equal(found, first, f"{request.kind}: other bits with {way}")
    return after


def _once(
    kernels: CudaOnCpu,
    program: KernelProgram,
    request: OpRequest,
    inputs: Sequence[Array],
    alias: tuple[int, int] | None,
    updates: Sequence[int],
    way: tuple[bool, bool],
) -> tuple[Array, Result]:
    operands = (*request.inputs, *request.outputs)
    sizes = [nbytes(o.spec) for o in operands] + [program.workspace_bytes]
    addresses: list[int] = []
    guards = [(0, GUARD_BYTES)]
    end = GUARD_BYTES
    for position, size in enumerate(sizes):
        if alias is not None and position == len(inputs) + alias[0]:
            addresses.append(addresses[alias[1]])
            continue
        addresses.append(end)
        last = end + size
        end = -(-last // 64) * 64 + GUARD_BYTES
        guards.append((last, end))
    room = np.full(end + 64, POISON, np.uint8)
    start = -room.ctypes.data % 64
    memory = room[start : start + end]
    flats = [stored(a, o.layout) for a, o in zip(inputs, request.inputs, strict=True)]
    for flat, address in zip(flats, addresses, strict=False):
        memory[address : address + flat.nbytes] = flat.view(np.uint8)
    falling, whole = way
    kernels.run(program, memory, addresses, falling=falling, whole_grid=whole)
    for first, last in guards:
        assert (memory[first:last] == POISON).all(), f"{request.kind} wrote outside its operands, near {first}"
    left = [
        memory[a : a + size].view(numpy_type(o.spec)).copy()
        for o, a, size in zip(operands, addresses, sizes, strict=False)
    ]
    for position, (flat, found) in enumerate(zip(flats, left, strict=False)):
        if position not in updates and (alias is None or alias[1] != position):
            assert flat.tobytes() == found.tobytes(), f"{request.kind} wrote its input {position}"
    values = [logical(flat, o.spec.shape, o.layout) for flat, o in zip(left, operands, strict=True)]
    written = np.concatenate([f.view(np.uint8) for f in left])
    return written, Result(values[len(inputs) :], values[: len(inputs)])


def same_bits(ours: Array, exact: Array) -> None:
    """Check for equal values, zeros with their signs; a NaN may be any NaN."""
    assert ours.shape == exact.shape and ours.dtype == exact.dtype
    np.testing.assert_array_equal(ours, exact)
    if ours.dtype.kind == "f":
        number = ~np.isnan(ours)
        np.testing.assert_array_equal(np.signbit(ours)[number], np.signbit(exact)[number])
