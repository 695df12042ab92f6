"""An operation as launches of the backend's own kernels: plain data, made from shapes alone.

Nothing here knows a library or a device, so the same program runs on a GPU and, in tests, on a CPU. Kernels take their
pointers first, then their scalars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ....memory.errors import DeviceError
from .op_request import CHANNELS_LAST, Operand, OpRequest

Scalar = np.int32 | np.int64 | np.float32 | np.float64

THREADS = 256
"""Threads of every block; the cooperative kernels count on it."""
MOST_BLOCKS = 132 * 16
"""Blocks of the largest launch: two full rounds on 132 multiprocessors of 2,048 threads; kernels stride beyond."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """A type of the elements that kernels compute with; all arithmetic is in float32, with one rounding at the end.

    Attributes:
        name: as in a `TensorSpec`.
        suffix: what the names of its kernels end with.
        nbytes: of an element as it is stored.
        packs: how many elements there are kernels to move at once; as many as have 16 bytes first.
    """

    name: str
    suffix: str
    nbytes: int
    packs: tuple[int, ...]


FLOAT32 = ElementType("float32", "", 4, (4, 1))
BFLOAT16 = ElementType("bfloat16", "_bf16", 2, (8, 4, 1))
ELEMENT_TYPES: Mapping[str, ElementType] = MappingProxyType({t.name: t for t in (FLOAT32, BFLOAT16)})


@dataclass(frozen=True, slots=True)
class Pointer:
    """A parameter of a kernel that points into an operand.

    Attributes:
        operand: position among (inputs …, outputs …, workspace).
        offset: bytes from where the operand begins.
    """

    operand: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One launch of a kernel.

    Attributes:
        function: name of an `extern "C"` kernel.
        blocks: of a one-dimensional grid.
        threads: of each block.
        operands: the pointer parameters in order.
        scalars: the parameters after them; numpy's type is the C type.
    """

    function: str
    blocks: int
    threads: int
    operands: tuple[Pointer, ...]
    scalars: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """Launches of kernels that compute an operation, or a part of one.

    Attributes:
        calls: launches, one after the other on one stream.
        workspace_bytes: scratch that they need; it holds garbage before and after.
    """

    calls: tuple[KernelCall, ...]
    workspace_bytes: int = 0


def pointers(*operands: int | Pointer) -> tuple[Pointer, ...]:
    """Turn positions into pointers to where the operands begin."""
    return tuple(p if isinstance(p, Pointer) else Pointer(p) for p in operands)


def launch_items(function: str, items: int, operands: tuple[Pointer, ...], *scalars: Scalar) -> KernelCall:
    """Make a launch with one thread per item, or fewer threads that stride."""
    return launch_blocks(function, -(-items // THREADS), operands, *scalars)


def launch_blocks(function: str, pieces: int, operands: tuple[Pointer, ...], *scalars: Scalar) -> KernelCall:
    """Make a launch with one block per piece, or fewer blocks that stride."""
    return KernelCall(function, max(1, min(MOST_BLOCKS, pieces)), THREADS, operands, scalars)


def launch_flat(
    function: str, element: ElementType, count: int, operands: tuple[Pointer, ...], *scalars: Scalar
) -> KernelCall:
    """Make a launch over `count` elements of a type, 16 bytes at a time; the count is the first scalar."""
    return launch_items(function + element.suffix, -(-count // element.packs[0]), operands, np.int64(count), *scalars)


def elements(operand: Operand) -> int:
    """Return the number of elements of the logical shape."""
    return math.prod(operand.spec.shape)


def choose_pack(function: str, element: ElementType, *widths: int) -> tuple[str, int]:
    """Choose how many elements a kernel moves at once: as many as all `widths` are multiples of.

    Returns:
        the name of the kernel that does, and the number.
    """
    pack = next(p for p in element.packs if all(width % p == 0 for width in widths))
    return f"{function}{element.suffix}_{pack}", pack


def conversion_suffix(source: ElementType, target: ElementType) -> str:
    """Return what a kernel's name ends with that reads one type and writes another, or reads and writes the same."""
    if source == target:
        return source.suffix
    return f"_to{target.suffix}" if source == FLOAT32 else f"_from{source.suffix}"


def require(condition: bool, request: OpRequest, expected: str) -> None:
    """Check a condition that a kernel counts on.

    Raises:
        DeviceError: `condition` does not hold; says what was expected and what the operands are.
    """
    if not condition:
        found = ", ".join(f"{o.spec.shape} {o.spec.dtype} {o.layout or 'plain'}" for o in _operands(request))
        raise DeviceError(f"{request.kind} on CUDA", expected, found)


def require_float32(request: OpRequest, *operands: Operand) -> None:
    """Check that the operands are float32; raises DeviceError."""
    require(all(o.spec.dtype == FLOAT32.name for o in operands), request, "float32 tensors")


def element_type(request: OpRequest, operand: Operand, *others: Operand) -> ElementType:
    """Return the type of an operand's elements, float32 or bfloat16.

    Raises:
        DeviceError: it is another one, or that of one of `others` differs.
    """
    require(operand.spec.dtype in ELEMENT_TYPES, request, f"{' or '.join(ELEMENT_TYPES)} tensors")
    require(all(o.spec.dtype == operand.spec.dtype for o in others), request, "tensors of one element type")
    return ELEMENT_TYPES[operand.spec.dtype]


def image_type(request: OpRequest, *operands: Operand) -> ElementType:
    """Return the type, float32 or bfloat16, of the elements of channels-last images.

    Raises:
        DeviceError: it is another one, not the same for all, or an image is not channels-last.
    """
    element = element_type(request, *operands)
    require(all(channels_last(o) for o in operands), request, "channels-last images")
    return element


def channels_last(operand: Operand) -> bool:
    """Whether (N, C, H, W) lies as (N, H, W, C); so it does in either layout with one channel or one pixel."""
    shape = operand.spec.shape
    return len(shape) == 4 and (operand.layout == CHANNELS_LAST or plain_alike(shape))


def plain_alike(shape: tuple[int, ...]) -> bool:
    """Whether both layouts of a shape are the same bytes."""
    return len(shape) != 4 or shape[1] == 1 or shape[2] * shape[3] == 1


def same_order(a: Operand, b: Operand) -> bool:
    """Whether the elements of two tensors of one shape lie in the same order."""
    return a.spec.shape == b.spec.shape and (a.layout == b.layout or plain_alike(a.spec.shape))


def _operands(request: OpRequest) -> tuple[Operand, ...]:
    return (*request.inputs, *request.outputs)
