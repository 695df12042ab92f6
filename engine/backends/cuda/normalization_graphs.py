"""Graphs of batch normalization in training, alone or with the ReLU behind it.

In this backend the output that others call var holds 1 / √(var + eps), as cuDNN makes it and reads it. With a ReLU a
mask is made too, one byte per element: where the output is positive. The gradient of both is the batch norm's of
mask · dy, as cuDNN has no engine for the gradients of a ReLU and a batch norm in one graph.

A repeated run is the same plan once more, so that the output has the same bits, with mean and deviation written to
scratch: the first run's, which later operations read, stay as they are.
"""

from __future__ import annotations

from typing import Any

from .cudnn_graph import CudnnGraph
from .op_request import OpRequest


def batch_norm_training(graph: CudnnGraph, request: OpRequest) -> None:
    """(x, weight, bias) → (y, mean, 1 / √(var + eps))."""
    graph.result(_normalize(graph, request), 3, request.outputs[0])


def batch_norm_relu(graph: CudnnGraph, request: OpRequest) -> None:
    """(x, weight, bias) → (y, mean, 1 / √(var + eps), mask).

    The mask is of the ReLU's output: cuDNN wants one reader of what is normalized.
    """
    y = graph.relu(_normalize(graph, request))
    graph.result(y, 3, request.outputs[0])
    graph.result(graph.mask_positive(y), 6, request.outputs[3])


def batch_norm_backward(graph: CudnnGraph, request: OpRequest) -> None:
    """(x, dy, weight, mean, 1 / √(var + eps)) → (dx, dweight, dbias)."""
    _gradients(graph, request, graph.operand(1, request.inputs[1]))


def batch_norm_relu_backward(graph: CudnnGraph, request: OpRequest) -> None:
    """(x, dy, weight, mean, 1 / √(var + eps), mask) → (dx, dweight, dbias)."""
    dy, mask = (graph.operand(i, request.inputs[i]) for i in (1, 5))
    _gradients(graph, request, graph.round_to(graph.multiply(dy, mask), request.inputs[1]))


def _normalize(graph: CudnnGraph, request: OpRequest) -> Any:
    """The normalized image, with its statistics as outputs."""
    x, weight, bias = (graph.operand(i, operand) for i, operand in enumerate(request.inputs))
    y, mean, inverse, *running = graph.batch_norm(x, weight, bias, request.attrs["eps"])
    graph.result(mean, 4, request.outputs[1], kept=True)
    graph.result(inverse, 5, request.outputs[2], kept=True)
    for tensor in running:
        graph.discard(tensor, request.outputs[1])
    return y


def _gradients(graph: CudnnGraph, request: OpRequest, dy: Any) -> None:
    x, weight, mean, inverse = (graph.operand(i, request.inputs[i]) for i in (0, 2, 3, 4))
    made = graph.batch_norm_gradient(x, dy, weight, mean, inverse)
    for i, (tensor, output) in enumerate(zip(made, request.outputs, strict=True)):
        graph.result(tensor, len(request.inputs) + i, output)
