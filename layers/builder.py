"""Building the forward graph from layers, with names from the layers around, and shape errors that name the layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..memory.errors import GraphError, ShapeError
from .assembly import NO_ATTRS, Assembly
from .graph import Graph, Role, TensorSpec
from .initializers import Initializer
from .operations import OpKind, ShapeRule
from .rules import read_attrs, read_specs

DTYPES = ("float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Layer(ABC):
    """One part of a network: a frozen declaration that adds its operations to a graph.

    Attributes:
        name: its part of the names of its tensors; where it is empty, the layer around it chooses one.
    """

    name: str = ""

    @abstractmethod
    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add this layer's operations for the input tensor `x` and return its output tensor."""


def require_layer(where: str, layer: object) -> Layer:
    """Return `layer`.

    Raises:
        GraphError: it is something else, such as the class instead of its instance.
    """
    if not isinstance(layer, Layer):
        hint = f"Call the class: {layer.__name__}() instead of {layer.__name__}." if isinstance(layer, type) else ""
        raise GraphError(where, "a layer", repr(layer), hint)
    return layer


class GraphBuilder:
    """A forward graph under construction."""

    def __init__(self, name: str, dtype: str) -> None:
        self.assembly = Assembly(name)
        self.dtype = dtype
        self.layers = 0
        self._scope: list[str] = []
        self._streams = 0

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix all names that are given inside the block with `name`; an empty name adds nothing."""
        if name:
            self._scope.append(name)
        try:
            yield
        finally:
            if name:
                self._scope.pop()

    @property
    def where(self) -> str:
        """The full name of the layer being built."""
        return ".".join(self._scope) or self.assembly.name

    def add(self, layer: Layer, x: int, default_name: str = "") -> int:
        """Build `layer` on `x` inside its own scope; raises GraphError when it is no layer."""
        require_layer(f"{self.where}.{default_name}" if default_name else self.where, layer)
        with self.scope(layer.name or default_name):
            made = layer.build(self, x)
            if not isinstance(made, int) or not 0 <= made < len(self.assembly.tensors):
                hint = "`build` must return what `apply` or `add` of the builder gave it."
                expected = f"a tensor from the `build` of {type(layer).__name__}"
                raise GraphError(self.where, expected, repr(made), hint)
            return made

    def _find_spec(self, tensor: int) -> TensorSpec:
        if not isinstance(tensor, int) or not 0 <= tensor < len(self.assembly.tensors):
            raise GraphError(self.where, "tensors that the builder gave", repr(tensor))
        return self.spec(tensor)

    def spec(self, tensor: int) -> TensorSpec:
        """Return the shape and element type of a tensor."""
        return self.assembly.spec(tensor)

    def require_images(self, x: int) -> int:
        """Return `x`; a layer that works on images calls it first.

        Raises:
            ShapeError: `x` does not have four dimensions.
        """
        shape = self.spec(x).shape
        if len(shape) != 4:
            raise ShapeError(
                self.where, "images of shape (N, C, H, W)", f"shape {shape}", "Put this layer before Flatten."
            )
        return x

    def parameter(self, name: str, shape: Sequence[int], initializer: Initializer) -> int:
        """Add a trained tensor of this layer and return it."""
        return self._state(name, shape, initializer, Role.PARAMETER)

    def buffer(self, name: str, shape: Sequence[int], initializer: Initializer) -> int:
        """Add a tensor of this layer that is kept from step to step but not trained, and return it."""
        return self._state(name, shape, initializer, Role.BUFFER)

    def _state(self, name: str, shape: Sequence[int], initializer: Initializer, role: Role) -> int:
        return self.assembly.tensor(f"{self.where}.{name}", TensorSpec(tuple(shape), self.dtype), role, initializer)

    def stream(self) -> int:
        """Return a number that no other layer gets, for a layer that draws random numbers."""
        self._streams += 1
        return self._streams - 1

    def apply(self, kind: OpKind, inputs: Sequence[int], attrs: Mapping[str, Any] = NO_ATTRS) -> int:
        """Append one operation and return its first output.

        Raises:
            GraphError: the kind has no shape rule, as those that gradient rules emit, or what the rule gives, or an
                attribute, is no plain value.
            ShapeError: the inputs do not fit; names the layer, what it expected and what it got.
        """
        if kind.shapes is None:
            hint = "Give its declaration shapes=, a function from the specs of the inputs to those of the outputs."
            raise GraphError(f"{self.where} ({kind.name})", "a kind of operation with a shape rule", "none", hint)
        where, specs = f"{self.where} ({kind.name})", [self._find_spec(t) for t in inputs]
        attrs = read_attrs(where, attrs)
        try:
            made = read_specs(where, kind.shapes(specs, attrs))
        except ShapeRule as rule:
            raise ShapeError(f"{self.where} ({kind.name})", rule.expected, rule.actual, rule.hint) from None
        outputs = []
        for index, spec in enumerate(made):
            name = f"{self.where}.{kind.name}" + (f".{index}" if index else "")
            outputs.append(self.assembly.tensor(name, spec, Role.ACTIVATION))
        self.assembly.op(kind.name, self.where, inputs, outputs, attrs)
        self.layers += 1
        return outputs[0]


def forward_graph(network: Layer, input_shape: Sequence[int], dtype: str = "float32") -> Graph:
    """Build the forward graph of `network` for a batch of images.

    Args:
        network: usually a `Sequential`.
        input_shape: (N, C, H, W), or (N, F) for networks without convolutions.
        dtype: "float32" or "float64".

    Raises:
        ShapeError: a layer does not fit its input.
        GraphError: a name is given twice, or the network is no layer or has no operation.
    """
    require_layer("network", network)
    shape = tuple(input_shape)
    if dtype not in DTYPES:
        raise GraphError("dtype", " or ".join(DTYPES), repr(dtype))
    if len(shape) < 2 or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ShapeError("input_shape", "positive whole numbers (N, C, H, W) or (N, F)", repr(input_shape))
    builder = GraphBuilder(network.name or type(network).__name__.lower(), dtype)
    x = builder.assembly.tensor("images", TensorSpec(shape, dtype), Role.INPUT)
    # The network's own name is the graph's, so its layers' names start at their own.
    y = network.build(builder, x)
    if not builder.assembly.ops:
        raise GraphError(builder.assembly.name, "at least one layer", "a network without operations")
    return builder.assembly.graph((y,), builder.layers)
