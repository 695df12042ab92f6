"""Graphs of batch normalization in training, alone or with what follows it, and of the ReLU.

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
    draft.result(_normalized(draft, request, 1), 3, request.outputs[0])


def batch_norm_relu(draft: Draft, request: Request) -> None:
    """(x, weight, bias) → (y, mean, 1 / √(var + eps), mask)."""
    _rectified(draft, request, _normalized(draft, request, 1))


def batch_norm_add_relu(draft: Draft, request: Request) -> None:
    """(x, residual, weight, bias) → (y, mean, 1 / √(var + eps), mask): y = max(batch norm of x + residual, 0)."""
    normalized = _normalized(draft, request, 2)
    _rectified(draft, request, draft.add(normalized, draft.operand(1, request.inputs[1])))


def batch_norm_backward(draft: Draft, request: Request) -> None:
    """(x, dy, weight, mean, 1 / √(var + eps)) → (dx, dweight, dbias)."""
    _gradients(draft, request, draft.operand(1, request.inputs[1]), (0, 1, 2))


def batch_norm_relu_backward(draft: Draft, request: Request) -> None:
    """(x, dy, weight, mean, 1 / √(var + eps), mask) → (dx, dweight, dbias)."""
    _gradients(draft, request, _masked(draft, request), (0, 1, 2))


def batch_norm_add_relu_backward(draft: Draft, request: Request) -> None:
    """(x, dy, weight, mean, 1 / √(var + eps), mask) → (dx, dresidual, dweight, dbias): dresidual = mask · dy."""
    dy = _masked(draft, request)
    draft.result(dy, len(request.inputs) + 1, request.outputs[1])
    _gradients(draft, request, dy, (0, 2, 3))


def relu(draft: Draft, request: Request) -> None:
    """X → y of any shape."""
    draft.result(draft.relu(draft.operand(0, request.inputs[0])), 1, request.outputs[0])


def relu_backward(draft: Draft, request: Request) -> None:
    """(y, dy) → dx of any shape; y is positive where the input was."""
    y, dy = (draft.operand(i, request.inputs[i]) for i in (0, 1))
    draft.result(draft.relu_gradient(y, dy), 2, request.outputs[0])


def _normalized(draft: Draft, request: Request, affine: int) -> Any:
    """The normalized image, with its statistics as outputs; weight and bias are at position `affine` and behind it."""
    x = draft.operand(0, request.inputs[0])
    weight, bias = (draft.operand(i, request.inputs[i]) for i in (affine, affine + 1))
    y, mean, inverse, *running = draft.batch_norm(x, weight, bias, request.attrs["eps"])
    first = len(request.inputs)
    draft.result(mean, first + 1, request.outputs[1], kept=True)
    draft.result(inverse, first + 2, request.outputs[2], kept=True)
    for tensor in running:
        draft.discard(tensor, request.outputs[1])
    return y


def _rectified(draft: Draft, request: Request, x: Any) -> None:
    """ReLU and mask as outputs. The mask is of the ReLU's output: cuDNN wants one reader of what is normalized."""
    first = len(request.inputs)
    y = draft.relu(x)
    draft.result(y, first, request.outputs[0])
    draft.result(draft.positive(y), first + 3, request.outputs[3])


def _masked(draft: Draft, request: Request) -> Any:
    dy, mask = (draft.operand(i, request.inputs[i]) for i in (1, 5))
    return draft.rounded(draft.multiply(dy, mask), request.inputs[1])


def _gradients(draft: Draft, request: Request, dy: Any, outputs: tuple[int, int, int]) -> None:
    x, weight, mean, inverse = (draft.operand(i, request.inputs[i]) for i in (0, 2, 3, 4))
    made = draft.batch_norm_gradient(x, dy, weight, mean, inverse)
    for tensor, output in zip(made, outputs, strict=True):
        draft.result(tensor, len(request.inputs) + output, request.outputs[output])
