"""Layers made of other layers: in sequence, beside a shortcut, or in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from ..memory.arguments import Argument, Maybe
from ..memory.errors import GraphError
from .builder import ALayer, Container, GraphBuilder, Layer, Parts, require_layer
from .merge import ADD, Concat, Merge


@dataclass(frozen=True, init=False)
class Sequential(Container):
    """Layers one after another: `Sequential(Conv2d(8, 3), ReLU(), name="stem")`.

    A layer without a name of its own is named by its position.
    """

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Layer, name: str = "") -> None:
        for position, layer in enumerate(layers):
            require_layer(f"Sequential[{position}]", layer)
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "name", name)
        self.__post_init__()

    def build_parts(self, builder: GraphBuilder, x: int) -> Parts:
        """Add all layers in order."""
        for position, layer in enumerate(self.layers):
            x = yield layer, x, str(position)
        return x


@dataclass(frozen=True)
class Residual(Container):
    """y = activation(body(x) + shortcut(x)); without a shortcut x itself is added.

    The layers of `body` are named as if they stood in this layer; those of `shortcut` under its own name.
    Source: He et al., 2015.
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType(
        {"body": ALayer(), "shortcut": Maybe(ALayer()), "activation": Maybe(ALayer())}
    )
    body: Layer
    shortcut: Layer | None = None
    activation: Layer | None = None

    def build_parts(self, builder: GraphBuilder, x: int) -> Parts:
        """Add both paths and their sum; raises ShapeError when the two do not fit."""
        y = yield self.body, x, ""
        around = x
        if self.shortcut is not None:
            around = yield self.shortcut, x, "shortcut"
        y = builder.apply(ADD, (y, around))
        if self.activation is not None:
            y = yield self.activation, y, "activation"
        return y


@dataclass(frozen=True, init=False)
class Branches(Container):
    """Several layers on the same input, their outputs merged: `Branches(a, b, merge=Concat())`."""

    branches: tuple[Layer, ...]
    merge: Merge

    def __init__(self, *branches: Layer, merge: Merge | None = None, name: str = "") -> None:
        for position, branch in enumerate(branches):
            require_layer(f"Branches[{position}]", branch)
        if merge is not None and not isinstance(merge, Merge):
            raise GraphError("Branches", "merge=Add() or Concat()", repr(merge))
        object.__setattr__(self, "branches", branches)
        object.__setattr__(self, "merge", Concat() if merge is None else merge)
        object.__setattr__(self, "name", name)
        self.__post_init__()

    def build_parts(self, builder: GraphBuilder, x: int) -> Parts:
        """Add all branches and the merge; raises ShapeError when their outputs do not fit."""
        made = []
        for position, branch in enumerate(self.branches):
            made.append((yield branch, x, f"branch{position}"))
        return self.merge.merge(builder, made)


@dataclass(frozen=True)
class Identity(Layer):
    """The input itself, as a branch of `Branches`."""

    def build(self, builder: GraphBuilder, x: int) -> int:
        """Add nothing."""
        return x
