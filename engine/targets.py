"""What a network's loss compares its outputs with, for batches of any size."""

from __future__ import annotations

from functools import cached_property

from ..layers.builder import Layer, forward_graph
from ..layers.graph import TensorSpec
from ..layers.losses.loss import Target, find_target
from .settings import Settings


class Targets:
    """The targets of one network and loss."""

    def __init__(self, network: Layer, settings: Settings) -> None:
        self._network, self._settings = network, settings

    @cached_property
    def _output(self) -> TensorSpec:
        """Shape and type of the network's output for a full batch."""
        graph = forward_graph(self._network, self._settings.input_shape, self._settings.dtype)
        return graph.tensors[graph.outputs[0]].spec

    def find(self, images: int) -> Target:
        """Return what the loss compares the outputs of so many images with.

        Raises:
            ShapeError: the loss takes no output of that shape.
        """
        output = self._output
        return find_target(self._settings.loss, TensorSpec((images, *output.shape[1:]), output.dtype))
