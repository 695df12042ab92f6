"""Graphs of convolutions: images channels-last, weights (O, H, W, I / groups).

cuDNN reads the number of groups off the dimensions. A bias is added within the graph; its gradient, a sum over images
and pixels, is not part of it.
"""

from __future__ import annotations

from ....layers.operations import Attrs
from .cudnn_graph import CudnnGraph
from .op_request import Operand, OpRequest


def conv2d(graph: CudnnGraph, request: OpRequest) -> None:
    """(x, weight[, bias]) → y."""
    x, weight = (graph.operand(i, request.inputs[i]) for i in (0, 1))
    y = graph.convolution(x, weight, _geometry(request.attrs))
    if len(request.inputs) == 3:
        y = graph.add(y, graph.operand(2, request.inputs[2]))
    graph.result(y, len(request.inputs), request.outputs[0])


def conv2d_backward_data(graph: CudnnGraph, request: OpRequest) -> None:
    """(dy, weight) → dx."""
    dy, weight = (graph.operand(i, request.inputs[i]) for i in (0, 1))
    graph.result(graph.convolution_data(dy, weight, _geometry(request.attrs)), 2, request.outputs[0])


def conv2d_backward_weights(graph: CudnnGraph, request: OpRequest) -> None:
    """(x, dy) → dweight; a second output, the bias' gradient, is left to another kernel."""
    x, dy = (graph.operand(i, request.inputs[i]) for i in (0, 1))
    dw: Operand = request.outputs[0]
    graph.result(graph.convolution_weights(x, dy, _geometry(request.attrs)), 2, dw)


def _geometry(attrs: Attrs) -> dict[str, list[int]]:
    return {name: list(attrs[name]) for name in ("padding", "stride", "dilation")}
