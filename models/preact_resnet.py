"""Residual networks with the activation first: batch norm and ReLU stand before each convolution, nothing after a sum.

What goes around a unit is then never touched: a signal reaches every unit, and its gradient comes back, as it is. Two
forms. For 224² images: the stem and the four stages of ResNet, and one more batch norm and ReLU before the pooling; the
stem's own activation, before its pooling, is that of the first unit. For 32² images: a 3×3 stem without activation and
three stages of 16, 32 and 64 filters. Where a unit changes shapes, the activation comes before the fork, so that the
1×1 convolution of the shortcut, which has no batch norm, reads it too. The stride is on the 3×3 convolution, batch norm
eps is 1e-5, convolutions start by He over fan out.

Source: He et al., "Identity Mappings in Deep Residual Networks", 2016, arXiv 1603.05027, figure 1b and appendix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..layers import (
    BatchNorm2d,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    GraphBuilder,
    He,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    Uniform,
)
from ..layers.merge import ADD
from ..memory.errors import ConfigError
from .resnet import EXPANSION, WIDTHS, Block, depth

SMALL_WIDTHS = (16, 32, 64)
"""Filters of the first convolution of the units of each stage, for 32² images."""


@dataclass(frozen=True)
class PreActivationUnit(Layer):
    """y = body(a) + shortcut(a) with a = activation(x); without a shortcut y = body(a) + x.

    Attributes:
        body: the convolutions, with the batch norms and ReLUs between them.
        activation: what comes before the fork; None where x is activated already.
        shortcut: a convolution where shapes change.
    """

    body: Layer
    activation: Layer | None = None
    shortcut: Layer | None = None

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add both paths and their sum; raises ShapeError when the two do not fit."""
        active = x if self.activation is None else builder.add(self.activation, x)
        y = builder.add(self.body, active)
        around = x if self.shortcut is None else builder.add(self.shortcut, active, "downsample")
        return builder.apply(ADD, (y, around))


def preact_resnet(
    stages: Sequence[int], classes: int = 1000, *, block: Block = "bottleneck", name: str = ""
) -> Sequential:
    """A residual network with the activation first: four stages for 224² images, or three for 32² images.

    Args:
        stages: units in each stage, so depth 3 · Σ + 2 with bottleneck units.
        classes: outputs.
        block: "bottleneck" (1×1, 3×3, 1×1) or "basic" (3×3, 3×3).
        name: empty makes one of the depth and the units.

    Raises:
        ConfigError: stages are not three or four positive whole numbers; an unknown block.
    """
    found = tuple(stages)
    if len(found) not in (3, 4) or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in found):
        hint = "ResNet-200 is (3, 24, 36, 3)."
        raise ConfigError("preact_resnet", "three or four positive whole numbers of units", repr(stages), hint)
    if block not in ("basic", "bottleneck"):
        raise ConfigError("preact_resnet", "block 'basic' or 'bottleneck'", repr(block))
    small = len(found) == 3
    widths = SMALL_WIDTHS if small else WIDTHS
    channels = widths[0]
    layers: list[Layer] = [_convolution(channels, 3 if small else 7, 1 if small else 2, "conv1")]
    if not small:
        layers += [BatchNorm2d(name="bn1"), ReLU(name="relu"), MaxPool2d(3, 2, padding=1, name="maxpool")]
    for number, (count, width) in enumerate(zip(found, widths, strict=True)):
        outputs = width * EXPANSION if block == "bottleneck" else width
        units = []
        for position in range(count):
            stride = 2 if position == 0 and number > 0 else 1
            is_active = not small and number == position == 0
            changes = stride != 1 or channels != outputs
            units.append(
                PreActivationUnit(
                    _body(block, width, stride),
                    None if is_active else Sequential(*_activation(1)),
                    _convolution(outputs, 1, stride) if changes else None,
                )
            )
            channels = outputs
        layers.append(Sequential(*units, name=f"layer{number + 1}"))
    layers += [
        BatchNorm2d(name="last_bn"),
        ReLU(name="last_relu"),
        GlobalAvgPool2d(name="avgpool"),
        Flatten(name="flatten"),
        Linear(classes, initializer=Uniform(), name="fc"),
    ]
    return Sequential(*layers, name=name or f"preact_resnet{depth(found, block)}-{'-'.join(map(str, found))}")


def _convolution(out_channels: int, kernel: int, stride: int, name: str = "") -> Conv2d:
    return Conv2d(
        out_channels, kernel, stride=stride, padding=kernel // 2, bias=False, initializer=He("out"), name=name
    )


def _activation(number: int) -> tuple[Layer, Layer]:
    return BatchNorm2d(name=f"bn{number}"), ReLU(name=f"relu{number}")


def _body(block: Block, width: int, stride: int) -> Sequential:
    """The convolutions of a unit; the activation of the first of them stands before it."""
    if block == "basic":
        return Sequential(_convolution(width, 3, stride, "conv1"), *_activation(2), _convolution(width, 3, 1, "conv2"))
    return Sequential(
        _convolution(width, 1, 1, "conv1"),
        *_activation(2),
        _convolution(width, 3, stride, "conv2"),
        *_activation(3),
        _convolution(width * EXPANSION, 1, 1, "conv3"),
    )


def preact_resnet18(classes: int = 1000) -> Sequential:
    """Pre-activation ResNet-18: basic units (2, 2, 2, 2), 224² images. Source: He et al., 2016."""
    return preact_resnet((2, 2, 2, 2), classes, block="basic", name="preact_resnet18")


def preact_resnet50(classes: int = 1000) -> Sequential:
    """Pre-activation ResNet-50: bottleneck units (3, 4, 6, 3), 224² images. Source: He et al., 2016."""
    return preact_resnet((3, 4, 6, 3), classes, name="preact_resnet50")


def preact_resnet101(classes: int = 1000) -> Sequential:
    """Pre-activation ResNet-101: bottleneck units (3, 4, 23, 3), 224² images. Source: He et al., 2016."""
    return preact_resnet((3, 4, 23, 3), classes, name="preact_resnet101")


def preact_resnet152(classes: int = 1000) -> Sequential:
    """Pre-activation ResNet-152: bottleneck units (3, 8, 36, 3), 224² images. Source: He et al., 2016."""
    return preact_resnet((3, 8, 36, 3), classes, name="preact_resnet152")


def preact_resnet200(classes: int = 1000) -> Sequential:
    """Pre-activation ResNet-200: bottleneck units (3, 24, 36, 3), 224² images. Source: He et al., 2016."""
    return preact_resnet((3, 24, 36, 3), classes, name="preact_resnet200")


def preact_resnet164(classes: int = 10) -> Sequential:
    """Pre-activation ResNet-164 for CIFAR: 18 bottleneck units in each stage, 32² images. Source: He et al., 2016."""
    return preact_resnet((18, 18, 18), classes, name="preact_resnet164")


def preact_resnet1001(classes: int = 10) -> Sequential:
    """Pre-activation ResNet-1001 for CIFAR: 111 bottleneck units in each stage, 32² images, 10.3 million parameters.

    Source: He et al., 2016.
    """
    return preact_resnet((111, 111, 111), classes, name="preact_resnet1001")
