"""What the makers of kernels are told of an operation, and the layouts of the backend.

Images, and all that is shaped like them, are channels-last: of a logical shape (N, C, H, W) the bytes lie as
(N, H, W, C). A weight (O, I, H, W) lies as (O, H, W, I). All else is plain C order.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....layers.graph import TensorSpec
from ....layers.operations import Attrs

PLAIN = ""
CHANNELS_LAST = "nhwc"


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
class Request:
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
