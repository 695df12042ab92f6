"""Two layers with operations of their own, as a program outside the package writes them, from the public names alone.

`Swish` is flat and has a gradient with scratch memory; `ChannelScale` has a parameter, whose gradient is a sum.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

import bathyal as bt


def swish(x, y, *, slope):
    np.multiply(x, -slope, out=y)
    np.exp(y, out=y)
    np.add(y, 1, out=y)
    np.divide(x, y, out=y)


def swish_backward(x, dy, dx, s, *, slope):
    """dx = dy · s · (1 + slope · x · (1 − s)), with s = sigmoid(slope · x)."""
    np.multiply(x, -slope, out=s)
    np.exp(s, out=s)
    np.add(s, 1, out=s)
    np.reciprocal(s, out=s)
    np.subtract(1, s, out=dx)
    np.multiply(dx, x, out=dx)
    np.multiply(dx, slope, out=dx)
    np.add(dx, 1, out=dx)
    np.multiply(dx, s, out=dx)
    np.multiply(dx, dy, out=dx)


def swish_backward_kernels(op):
    def run(x, dy, dx, scratch):
        swish_backward(x, dy, dx, scratch, slope=op.attrs["slope"])

    return (bt.NumpyKernel("whole", run, scratch=(op.inputs[0],)),)


def swish_gradient(builder, op, gradients):
    return builder.emit("own_swish_backward", (op.inputs[0], gradients[0]), op.inputs, op.attrs)


SWISH = bt.OpKind("own_swish", lambda inputs, attrs: (inputs[0],), swish_gradient, flat=True)
SWISH_BACKWARD = bt.OpKind("own_swish_backward", flat=True)


@dataclass(frozen=True)
class Swish(bt.Layer):
    """y = x · sigmoid(slope · x), of any shape."""

    slope: float = 1.0

    def build(self, builder, x):
        return builder.apply(SWISH, (x,), {"slope": self.slope})


def scale_shapes(inputs, attrs):
    x, scale = inputs
    if len(x.shape) != 4:
        raise bt.ShapeRule("images of shape (N, C, H, W)", f"shape {x.shape}", "Put it before Flatten().")
    assert scale.shape == x.shape[1:2]
    return (x,)


def scale_gradient(builder, op, gradients):
    x, scale = op.inputs
    dx = (
        builder.emit("own_channel_scale", (gradients[0], scale), (x,), op.attrs)[0]
        if builder.needs_gradient(x)
        else None
    )
    return dx, builder.emit("own_channel_scale_weight", (x, gradients[0]), (scale,), op.attrs)[0]


def scale_channels(x, scale, y):
    np.multiply(x, scale[:, None, None], out=y)


def scale_weight_kernels(op):
    """The sum over images and pixels of x · dy, one image at a time through a scratch array."""
    images, channels, *_ = op.inputs[0].shape

    def run(x, dy, dscale, product, total):
        dscale.fill(0)
        for image in range(images):
            np.multiply(x[image], dy[image], out=product)
            np.add.reduce(product, axis=(1, 2), out=total)
            np.add(dscale, total, out=dscale)

    one = replace(op.inputs[0], shape=op.inputs[0].shape[1:])
    return (bt.NumpyKernel("images", run, scratch=(one, replace(one, shape=(channels,)))),)


CHANNEL_SCALE = bt.OpKind("own_channel_scale", scale_shapes, scale_gradient, inplace=((0, 0),))
CHANNEL_SCALE_WEIGHT = bt.OpKind("own_channel_scale_weight")


@dataclass(frozen=True)
class ChannelScale(bt.Layer):
    """y[n, c, h, w] = scale[c] · x[n, c, h, w]."""

    def build(self, builder, x):
        channels = builder.spec(x).shape[1:2]
        return builder.apply(CHANNEL_SCALE, (x, builder.parameter("scale", channels, bt.Constant(0.8))))


@contextmanager
def register_own_layers() -> Iterator[None]:
    """The operations of both are there within, and are taken back."""
    bt.register_operation(SWISH, swish)
    bt.register_operation(SWISH_BACKWARD, kernels=swish_backward_kernels)
    bt.register_operation(CHANNEL_SCALE, run=scale_channels)
    bt.register_operation(CHANNEL_SCALE_WEIGHT, kernels=scale_weight_kernels)
    try:
        yield
    finally:
        for kind in (SWISH, SWISH_BACKWARD, CHANNEL_SCALE, CHANNEL_SCALE_WEIGHT):
            bt.unregister_operation(kind.name)
