"""An operation as launches of the backend's own kernels: plain data, made from shapes alone.

Nothing here knows a library or a device, so the same program runs on a GPU and, in tests, on a CPU. Kernels take their
pointers first, then their scalars.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ....memory.errors import DeviceError
from .request import CHANNELS_LAST, Operand, Request

Scalar = np.int32 | np.int64 | np.float32 | np.float64

THREADS = 256
"""Threads of every block; the cooperative kernels count on it."""
MOST_BLOCKS = 132 * 16
"""Blocks of the largest launch: two full rounds on 132 multiprocessors of 2,048 threads; kernels stride over the rest."""
PACK = 4
"""Elements that a kernel moves at once where the channels allow it."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer parameter.

    Attributes:
        operand: position among (inputs …, outputs …, workspace).
        offset: bytes from where the operand begins.
    """

    operand: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One launch.

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
class Program:
    """An operation, or a part of one.

    Attributes:
        calls: launches, one after the other on one stream.
        workspace_bytes: scratch that they need; it holds garbage before and after.
    """

    calls: tuple[KernelCall, ...]
    workspace_bytes: int = 0


def pointers(*operands: int | Pointer) -> tuple[Pointer, ...]:
    """Positions as pointers to where the operands begin."""
    return tuple(p if isinstance(p, Pointer) else Pointer(p) for p in operands)


def each(function: str, items: int, operands: tuple[Pointer, ...], *scalars: Scalar) -> KernelCall:
    """A launch with one thread per item, or fewer threads that stride."""
    return blocked(function, -(-items // THREADS), operands, *scalars)


def blocked(function: str, pieces: int, operands: tuple[Pointer, ...], *scalars: Scalar) -> KernelCall:
    """A launch with one block per piece, or fewer blocks that stride."""
    return KernelCall(function, max(1, min(MOST_BLOCKS, pieces)), THREADS, operands, scalars)


def flat(function: str, count: int, operands: tuple[Pointer, ...], *scalars: Scalar) -> KernelCall:
    """A launch over `count` elements, four at a time; the count is the first scalar."""
    return each(function, -(-count // PACK), operands, np.int64(count), *scalars)


def elements(operand: Operand) -> int:
    """Number of elements of the logical shape."""
    return math.prod(operand.spec.shape)


def packed(function: str, *widths: int) -> tuple[str, int]:
    """The kernel's name and the elements that it moves at once, given the lengths that must be multiples of them."""
    pack = PACK if all(width % PACK == 0 for width in widths) else 1
    return f"{function}_{pack}", pack


def require(condition: bool, request: Request, expected: str) -> None:
    """Check what a kernel counts on.

    Raises:
        DeviceError: `condition` does not hold; says what was expected and what the operands are.
    """
    if not condition:
        found = ", ".join(f"{o.spec.shape} {o.spec.dtype} {o.layout or 'plain'}" for o in _operands(request))
        raise DeviceError(f"{request.kind} on CUDA", expected, found)


def require_float(request: Request, *operands: Operand) -> None:
    """Check that the operands are float32; raises DeviceError."""
    require(all(o.spec.dtype == "float32" for o in operands), request, "float32 tensors")


def require_images(request: Request, *operands: Operand) -> None:
    """Check that the operands are float32 images whose channels lie next to each other; raises DeviceError."""
    require_float(request, *operands)
    require(all(channels_last(o) for o in operands), request, "channels-last images")


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


def _operands(request: Request) -> tuple[Operand, ...]:
    return (*request.inputs, *request.outputs)
