"""Building the forward graph from layers, with names from the layers around, and shape errors that name the layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, cast

from ..memory.arguments import LARGEST_WHOLE, Argument, Text, is_whole, read_fields
from ..memory.errors import GraphError, ShapeError
from .assembly import NO_ATTRS, Assembly
from .graph import Graph, Role, TensorSpec
from .initializers import AN_INITIALIZER, Initializer
from .operations import OpKind, ShapeRule
from .pytorch_spelling import refuse_pytorch_spelling
from .rules import read_attrs, read_specs, require_bytes
from .scopes import Scopes

DTYPES = ("float32", "float64")
NAME: Mapping[str, Argument] = MappingProxyType({"name": Text()})


LARGEST_TENSOR_BYTES = 2**44
LARGEST_STATE_BYTES = 2**35
"""Bytes of one tensor and of one parameter that no machine is expected to hold; planning takes time by the byte."""


@dataclass(frozen=True, kw_only=True)
class Layer(ABC):
    """One part of a network: a frozen declaration that adds its operations to a graph.

    Attributes:
        arguments: of a class of layers, what each of its arguments may be; they are read when a layer is made.
        pytorch: of a class of layers, the names of PyTorch's arguments in PyTorch's order, for errors about calls that
            would mean something else here; empty where PyTorch has no such layer.
        name: its part of the names of its tensors; where it is empty, the layer around it chooses one.

    Raises:
        ConfigError: an argument is not what `arguments` says, or the call is written in PyTorch's order.
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType({})
    pytorch: ClassVar[tuple[str, ...]] = ()
    name: str = ""

    def __new__(cls, *given: object, **named: object) -> Layer:
        """Refuse a call in PyTorch's order, before Python reads its arguments in the order of this package."""
        if cls.pytorch:
            refuse_pytorch_spelling(cls, cls.pytorch, given, named)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Read the arguments as their kinds say."""
        read_fields(self, NAME, type(self).__name__)
        read_fields(self, self.arguments, type(self).__name__ + (f" {self.name!r}" if self.name else ""))

    @abstractmethod
    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add this layer's operations for the input tensor `x` and return its output tensor."""


Parts: TypeAlias = "Generator[tuple[Layer, int, str], int, int]"
"""Yields what `GraphBuilder.add` takes, is sent what it returns, and returns the output."""


@dataclass(frozen=True, kw_only=True)
class Container(Layer):
    """A layer that is made of layers, which may be nested as deep as memory allows."""

    @abstractmethod
    def build_parts(self, builder: GraphBuilder, x: int) -> Parts:
        """Add all parts: yield each layer with its input and the name that it gets without one of its own."""

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add all parts in order; raises ShapeError where they do not fit."""
        parts, made = self.build_parts(builder, x), None
        while True:
            try:
                layer, x, name = parts.send(made)  # type: ignore[arg-type]  # None begins
            except StopIteration as end:
                return cast(int, end.value)
            made = builder.add(layer, x, name)


@dataclass(frozen=True, slots=True)
class ALayer:
    """What the arguments of layers that are made of layers may be."""

    def read(self, where: str, name: str, value: object) -> Layer:
        """Return the layer; raises GraphError for anything else."""
        return require_layer(f"{where}.{name}", value)


def require_layer(where: str, layer: object) -> Layer:
    """Return `layer`.

    Raises:
        GraphError: it is something else, such as the class instead of its instance.
    """
    if not isinstance(layer, Layer):
        hint = f"Call the class: {layer.__name__}() instead of {layer.__name__}." if isinstance(layer, type) else ""
        hint = "Give the layers themselves: Sequential(*layers)." if isinstance(layer, (list, tuple)) else hint
        raise GraphError(where, "a layer", repr(layer), hint)
    return layer


class GraphBuilder:
    """A forward graph under construction."""

    def __init__(self, name: str, dtype: str) -> None:
        self.assembly = Assembly(name)
        self.dtype = dtype
        self.layers = 0
        self._scopes = Scopes()
        self._state_ids: dict[str, tuple[int, str]] = {}
        self._made_by: dict[str, int] = {}
        self._streams = 0

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix all names that are given inside the block with `name`; an empty name adds nothing."""
        self._scopes.enter_part(name)
        try:
            yield
        finally:
            self._scopes.leave()

    @property
    def where(self) -> str:
        """The full name of the layer being built."""
        return self._scopes.current.name or self.assembly.name

    def add(self, layer: Layer, x: int, default_name: str = "") -> int:
        """Build `layer` on `x` inside its own scope; raises GraphError when it is no layer.

        A layer object that is added again has the parameters and running statistics that it had the first time.
        """
        depth = self._scopes.depth
        try:
            return self._build(layer, x, default_name)
        finally:
            self._scopes.leave_to(depth)

    def _build(self, layer: Layer, x: int, default_name: str) -> int:
        """Build a layer; the containers within wait in a list, so that their depth is not bounded by Python's stack."""
        waiting: list[tuple[Container, Parts]] = []
        while True:
            require_layer(f"{self.where}.{default_name}" if default_name else self.where, layer)
            self._scopes.enter_layer(layer, layer.name, default_name)
            made: int | None = None
            if isinstance(layer, Container) and type(layer).build is Container.build:
                waiting.append((layer, layer.build_parts(self, x)))
            else:
                made = self._require_made(layer, layer.build(self, x))
                self._scopes.leave()
            while waiting:
                container, parts = waiting[-1]
                try:
                    layer, x, default_name = parts.send(made)  # type: ignore[arg-type]  # None begins
                    break
                except StopIteration as end:
                    made = self._require_made(container, end.value)
                    waiting.pop()
                    self._scopes.leave()
            else:
                assert made is not None, "a layer without parts is built"
                return made

    def _require_made(self, layer: Layer, made: object) -> int:
        if not isinstance(made, int) or not 0 <= made < len(self.assembly.tensors):
            hint = "`build` must return what `apply` or `add` of the builder gave it."
            raise GraphError(self.where, f"a tensor from the `build` of {type(layer).__name__}", repr(made), hint)
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
        scope = self._scopes.current
        full = f"{scope.state or self.assembly.name}.{name}"
        (spec,) = read_specs(full, (TensorSpec(tuple(shape), self.dtype),))
        if scope.again and full in self._state_ids:
            return self._share(full, spec, role)
        require_bytes(full, spec, LARGEST_STATE_BYTES, "Give the layer fewer channels or features.")
        AN_INITIALIZER.read(full, "initializer", initializer)
        made = self.assembly.tensor(full, spec, role, initializer)
        self._state_ids[full] = made, self.where
        return made

    def _share(self, full: str, spec: TensorSpec, role: Role) -> int:
        """Return a tensor that the layer made when it was used first.

        Raises:
            ShapeError: it would need another shape, type or role here; names both places.
        """
        tensor, first = self._state_ids[full]
        found = self.assembly.tensors[tensor]
        if (found.spec, found.role) == (spec, role):
            return tensor
        expected = (
            f"what the layer has since its first use at {first}: {full}, {found.role.value} of shape {found.shape}"
        )
        hint = "Make a second layer, or bring both inputs to the same channels or features."
        raise ShapeError(self.where, expected, f"{role.value} of shape {spec.shape}", hint)

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
            require_bytes(where, spec, LARGEST_TENSOR_BYTES, "Give a smaller batch, or the layer fewer outputs.")
            outputs.append(self._add_made(f"{self.where}.{kind.name}" + (f".{index}" if index else ""), spec))
        self.assembly.op(kind.name, self.where, inputs, outputs, attrs)
        self.layers += 1
        return outputs[0]

    def _add_made(self, name: str, spec: TensorSpec) -> int:
        """Append what an operation makes; it gets a number where a layer around or within has the name.

        The body of a `Residual` is named as if it stood there itself, and may be a `Residual` too.
        """
        earlier = self._made_by.get(name)
        if earlier is not None and self._scopes.is_around_or_within(earlier):
            return self.assembly.add_derived(name, spec, Role.ACTIVATION)
        self._made_by[name] = self._scopes.current.build
        return self.assembly.tensor(name, spec, Role.ACTIVATION)


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
    shape = tuple(int(n) if is_whole(n, 1, LARGEST_WHOLE) else n for n in input_shape)
    if dtype not in DTYPES:
        raise GraphError("dtype", " or ".join(DTYPES), repr(dtype))
    if len(shape) < 2 or not all(is_whole(n, 1, LARGEST_WHOLE) for n in shape):
        raise ShapeError("input_shape", "positive whole numbers (N, C, H, W) or (N, F)", repr(input_shape))
    builder = GraphBuilder(network.name or type(network).__name__.lower(), dtype)
    x = builder.assembly.tensor("images", TensorSpec(shape, dtype), Role.INPUT)
    # The network's own name is the graph's, so its layers' names start at their own.
    y = network.build(builder, x)
    if not builder.assembly.ops:
        raise GraphError(builder.assembly.name, "at least one layer", "a network without operations")
    return builder.assembly.graph((y,), builder.layers)
