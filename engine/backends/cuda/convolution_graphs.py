"""Graphs of convolutions: images channels-last, weights (O, H, W, I / groups).

cuDNN reads the number of groups off the dimensions. A bias is added within the graph; its gradient, a sum over images
and pixels, is not part of it.
"""

from __future__ import annotations

from ....layers.operations import Attrs
from .draft import Draft
from .request import Operand, Request


def conv2d(draft: Draft, request: Request) -> None:
    """(x, weight[, bias]) → y."""
    x, weight = (draft.operand(i, request.inputs[i]) for i in (0, 1))
    y = draft.convolution(x, weight, _geometry(request.attrs))
    if len(request.inputs) == 3:
        y = draft.add(y, draft.operand(2, request.inputs[2]))
    draft.result(y, len(request.inputs), request.outputs[0])


def conv2d_backward_data(draft: Draft, request: Request) -> None:
    """(dy, weight) → dx."""
    dy, weight = (draft.operand(i, request.inputs[i]) for i in (0, 1))
    draft.result(draft.convolution_data(dy, weight, _geometry(request.attrs)), 2, request.outputs[0])


def conv2d_backward_weights(draft: Draft, request: Request) -> None:
    """(x, dy) → dweight; a second output, the bias' gradient, is left to another kernel."""
    x, dy = (draft.operand(i, request.inputs[i]) for i in (0, 1))
    dw: Operand = request.outputs[0]
    draft.result(draft.convolution_weights(x, dy, _geometry(request.attrs)), 2, dw)


def _geometry(attrs: Attrs) -> dict[str, list[int]]:
    return {name: list(attrs[name]) for name in ("padding", "stride", "dilation")}
