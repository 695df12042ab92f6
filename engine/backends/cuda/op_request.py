"""What the makers of kernels are told of an operation, and the layouts of the backend.

Images, and all that is shaped like them, are channels-last: of a logical shape (N, C, H, W) the bytes lie as
(N, H, W, C). A weight (O, I, H, W) lies as (O, H, W, I). All else is plain C order. A graph's tensor is of float32 by
its type and may be stored in 16 bits by its layout; an operand has the type in which it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....layers.graph import Tensor, TensorSpec
from ....layers.operations import Attrs

PLAIN = ""
CHANNELS_LAST = "nhwc"
BFLOAT16 = "bf16"
"""Layout of a graph's tensor that is plain and stored in 16 bits."""
NARROW_CHANNELS_LAST = f"{CHANNELS_LAST} {BFLOAT16}"


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a kernel meets it.

    Attributes:
        spec: logical shape and element type.
        layout: `PLAIN` or `CHANNELS_LAST`; the second for four axes alone.
    """

    spec: TensorSpec
    layout: str = PLAIN


@dataclass(frozen=True, slots=True)
class OpRequest:
    """An operation without its graph.

    Attributes:
        kind: name of an `OpKind`.
        inputs: in the order of the operation.
        outputs: the same.
        attrs: of the operation.
    """

    kind: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    attrs: Attrs


def operand(tensor: Tensor) -> Operand:
    """A tensor of a lowered graph as kernels meet it."""
    narrow = tensor.layout in (BFLOAT16, NARROW_CHANNELS_LAST)
    spec = TensorSpec(tensor.shape, "bfloat16") if narrow else tensor.spec
    return Operand(spec, CHANNELS_LAST if tensor.layout.startswith(CHANNELS_LAST) else PLAIN)
