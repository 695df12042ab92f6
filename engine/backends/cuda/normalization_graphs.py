"""Graphs of batch normalization in training, alone or with the ReLU behind it.

In this backend the output that others call var holds 1 / √(var + eps), as cuDNN makes it and reads it. With a ReLU a
mask is made too, one byte per element: where the output is positive. The gradient of both is the batch norm's of
mask · dy, as cuDNN has no engine for the gradients of a ReLU and a batch norm in one graph.

A repeated run is the same plan once more, so that the output has the same bits, with mean and deviation written to
scratch: the first run's, which later operations read, stay as they are.
"""

from __future__ import annotations

from typing import Any

from .draft import Draft
from .request import Request


def batch_norm_training(draft: Draft, request: Request) -> None:
    """(x, weight, bias) → (y, mean, 1 / √(var + eps))."""
    draft.result(_normalized(draft, request), 3, request.outputs[0])


def batch_norm_relu(draft: Draft, request: Request) -> None:
    """(x, weight, bias) → (y, mean, 1 / √(var + eps), mask).

    The mask is of the ReLU's output: cuDNN wants one reader of what is normalized.
    """
    y = draft.relu(_normalized(draft, request))
    draft.result(y, 3, request.outputs[0])
    draft.result(draft.positive(y), 6, request.outputs[3])


def batch_norm_backward(draft: Draft, request: Request) -> None:
    """(x, dy, weight, mean, 1 / √(var + eps)) → (dx, dweight, dbias)."""
    _gradients(draft, request, draft.operand(1, request.inputs[1]))


def batch_norm_relu_backward(draft: Draft, request: Request) -> None:
    """(x, dy, weight, mean, 1 / √(var + eps), mask) → (dx, dweight, dbias)."""
    dy, mask = (draft.operand(i, request.inputs[i]) for i in (1, 5))
    _gradients(draft, request, draft.rounded(draft.multiply(dy, mask), request.inputs[1]))


def _normalized(draft: Draft, request: Request) -> Any:
    """The normalized image, with its statistics as outputs."""
    x, weight, bias = (draft.operand(i, operand) for i, operand in enumerate(request.inputs))
    y, mean, inverse, *running = draft.batch_norm(x, weight, bias, request.attrs["eps"])
    draft.result(mean, 4, request.outputs[1], kept=True)
    draft.result(inverse, 5, request.outputs[2], kept=True)
    for tensor in running:
        draft.discard(tensor, request.outputs[1])
    return y


def _gradients(draft: Draft, request: Request, dy: Any) -> None:
    x, weight, mean, inverse = (draft.operand(i, request.inputs[i]) for i in (0, 2, 3, 4))
    made = draft.batch_norm_gradient(x, dy, weight, mean, inverse)
    for i, (tensor, output) in enumerate(zip(made, request.outputs, strict=True)):
        draft.result(tensor, len(request.inputs) + i, output)
