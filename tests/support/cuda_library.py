"""What runs the CUDA backend's kernels without a GPU: its own through g++, cuDNN's and cuBLAS' by numpy.

The graphs compute what cuDNN's do, on operands in the layouts that it is given, with the reference backend's kernels
inside; so whole training steps run through the backend's lowering, layouts, fusions and parts. Convolutions have three
plans, as a planner must choose among workspaces: all give the same bits.
"""

import ctypes
import math

import numpy as np

from bathyal.engine.backends.backend import Kernel
from bathyal.engine.backends.cuda.bfloat16 import from_bfloat16, to_bfloat16
from bathyal.engine.backends.cuda.op_request import CHANNELS_LAST
from bathyal.engine.backends.reference.numpy_kernel import OpSpec
from bathyal.engine.backends.reference.registry import IMPLEMENTATIONS
from bathyal.layers.graph import TensorSpec
from tests.support.cuda_on_cpu import cuda_on_cpu

PLANS = (Kernel("fast", 40_000), Kernel("middling", 4096), Kernel("lean", 0))
STATISTICS_BYTES = 1024
"""Scratch of a batch norm: two vectors of statistics, for a repeated run."""


def at(pointer, shape, dtype):
    """Memory from a machine address as an array."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer)).view(dtype).reshape(shape)


def memory_of(pointer, operand):
    """An operand in memory by its logical axes: a view; bfloat16 as uint16."""
    shape, dtype = operand.spec.shape, operand.spec.dtype
    dtype = "uint16" if dtype == "bfloat16" else dtype
    if operand.layout != CHANNELS_LAST:
        return at(pointer, shape, dtype)
    n, c, h, w = shape
    return at(pointer, (n, h, w, c), dtype).transpose(0, 3, 1, 2)


def logical(pointer, operand):
    """The values of an operand by its logical axes; bfloat16 in float32."""
    found = memory_of(pointer, operand)
    return from_bfloat16(found) if operand.spec.dtype == "bfloat16" else found


def put(pointer, operand, values):
    """Store values, rounded to the operand's type."""
    memory_of(pointer, operand)[:] = to_bfloat16(values) if operand.spec.dtype == "bfloat16" else values


def wide(operands):
    """Their specs, with float32 for bfloat16."""
    return [TensorSpec(o.spec.shape, o.spec.dtype.replace("bfloat16", "float32")) for o in operands]


def nbytes_of(operand):
    return math.prod(operand.spec.shape) * (
        2 if operand.spec.dtype == "bfloat16" else np.dtype(operand.spec.dtype).itemsize
    )


def reference(kind, attrs, inputs, outputs, kernel=0):
    """Outputs of an operation by the reference backend; `outputs` are specs."""
    specs = tuple(TensorSpec(a.shape, str(a.dtype)) for a in inputs)
    variant = IMPLEMENTATIONS[kind](OpSpec(specs, tuple(outputs), attrs))[kernel]
    made = [np.empty(s.shape, s.dtype) for s in outputs]
    scratch = [np.empty(s.shape, s.dtype) for s in variant.scratch]
    with np.errstate(all="ignore"):
        variant.run(*(np.ascontiguousarray(a) for a in inputs), *made, *scratch)
    return made


def batch_norm(request, inputs, repeat):
    """(y, mean, 1 / √(var + eps)[, mask]), with None for what a repeated run leaves alone."""
    specs = wide(request.outputs[:3])
    y, mean, var = reference("batch_norm_training", request.attrs, inputs, specs)
    inverse = (1 / np.sqrt(var.astype(np.float64) + request.attrs["eps"])).astype(np.float32)
    statistics = (None, None) if repeat else (mean, inverse)
    if request.kind == "batch_norm_training":
        return y, *statistics
    return np.maximum(y, 0), *statistics, (y > 0).astype(np.uint8)


def batch_norm_gradients(request, inputs):
    """(dx, dweight, dbias) through the mask, if there is one."""
    x, dy, weight, mean, inverse, *mask = inputs
    if mask:
        dy = np.where(mask[0] != 0, dy, np.float32(0))
    with np.errstate(all="ignore"):  # zeros, where it is only timed
        var = (1 / inverse.astype(np.float64) ** 2 - request.attrs["eps"]).astype(np.float32)
    specs = wide(request.outputs)
    return reference("batch_norm_backward", request.attrs, (x, dy, weight, mean, var), specs)


class CpuLibrary:
    """A `Library` that computes at once, or puts what it computes into a queue.

    Args:
        enqueue: called with a stream, what to run, and a name; by default it runs at once.

    Attributes:
        launched: names of what was launched, in order.
        pointers: all machine addresses that launches were given, with the bytes that belong there.
    """

    product_workspace_bytes = 512

    def __init__(self, enqueue=None):
        self._enqueue = enqueue or (lambda stream, run, name: run())
        self._kernels = cuda_on_cpu()
        self.launched = []
        self.pointers = []
        self.closed = False

    def version(self):
        return "a library of the host"

    def close(self):
        self.closed = True

    def _put(self, stream, run, name, used):
        self.launched.append(name)
        self.pointers += used
        self._enqueue(stream, run, name)

    def graph_kernels(self, request):
        if request.kind.startswith("conv2d"):
            return PLANS
        return (Kernel("only", STATISTICS_BYTES if "backward" not in request.kind else 0),)

    def graph(self, request, kernel, repeat, stream):
        operands = (*request.inputs, *request.outputs)
        count = len(request.inputs)
        workspace_bytes = self.graph_kernels(request)[kernel].workspace_bytes

        def compute(pointers, workspace):
            inputs = [logical(p, o) for p, o in zip(pointers, request.inputs, strict=False)]
            if workspace_bytes:
                at(workspace, (workspace_bytes,), np.uint8)[:] = 0xA5
            if request.kind in ("batch_norm_training", "batch_norm_relu"):
                made = batch_norm(request, inputs, repeat)
            elif request.kind in ("batch_norm_backward", "batch_norm_relu_backward"):
                made = batch_norm_gradients(request, inputs)
            else:
                made = reference(request.kind, request.attrs, inputs, wide(request.outputs))[:1]
            for values, pointer, operand in zip(made, pointers[count:], request.outputs, strict=False):
                if values is not None:
                    put(pointer, operand, values)

        def launch(pointers, workspace):
            used = [(p, nbytes_of(o)) for p, o in zip(pointers, operands, strict=False)]
            for first, nbytes in used[:count]:
                # cuDNN promises nothing where an output lies over an input.
                assert all(p >= first + nbytes or p + n <= first for p, n in used[count:]), f"{request.kind} in place"
            used.append((workspace, workspace_bytes))
            self._put(stream, lambda: compute(pointers, workspace), request.kind, used)

        return launch

    def product(self, product, stream):
        m, n, k = product.m, product.n, product.k

        def compute(a, b, c, workspace):
            # Fortran's order of (m, k) is C's order of (k, m).
            left = at(a, (m, k) if product.transposed[0] else (k, m), np.float32)
            right = at(b, (k, n) if product.transposed[1] else (n, k), np.float32)
            left = left if product.transposed[0] else left.T
            right = right if product.transposed[1] else right.T
            with np.errstate(all="ignore"):  # garbage, where it is only timed
                at(c, (n, m), np.float32)[:] = (left.astype(np.float64) @ right.astype(np.float64)).T
            at(workspace, (self.product_workspace_bytes,), np.uint8)[:] = 0xA5

        def launch(pointers, workspace):
            a, b, c = (pointers[place] for place in product.operands)
            used = [(a, 4 * m * k), (b, 4 * k * n), (c, 4 * m * n), (workspace, self.product_workspace_bytes)]
            self._put(stream, lambda: compute(a, b, c, workspace), "product", used)

        return launch

    def program(self, program, operands, stream):
        name = "+".join(call.function for call in program.calls)

        def launch(pointers, workspace):
            places = [*(pointers[o] for o in operands), workspace]
            used = [(p, 0) for p in places[:-1]] + [(workspace, program.workspace_bytes)]
            self._put(stream, lambda: self._kernels.run_at(program, places), name, used)

        return launch
