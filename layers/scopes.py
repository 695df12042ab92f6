"""Where in the network a graph's builder stands: names for operations, and names for state, which a used layer shares.

Both are made from the names of the layers around. They part where one layer object is used a second time: its
operations are named by the new place, and its parameters and running statistics by the place of its first use, so that
they are found again. Not checked: whether what is found has the shape that is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scope:
    """The place of a layer, or of a part of one.

    Attributes:
        name: prefix of the names of operations; empty at the top.
        state: prefix of the names of parameters and buffers.
        again: whether the layer, or one around it, has been used before.
        build: number of the `build` that runs here, in the order in which they began.
    """

    name: str
    state: str
    again: bool
    build: int


@dataclass(frozen=True, slots=True)
class _Use:
    """The first use of a name or of a layer.

    Attributes:
        layer: the object; held, as the identity of an object that is gone may return.
        scope: its place.
        chosen: whether the layer around it chose the name, as it has none of its own.
    """

    layer: object
    scope: Scope
    chosen: bool


class Scopes:
    """The places of the layers that are being built, one in the other."""

    def __init__(self) -> None:
        self._open = [Scope("", "", False, 0)]
        self._builds = 0
        self._layers: dict[int, _Use] = {}
        self._names: dict[str, _Use] = {}

    @property
    def current(self) -> Scope:
        """The innermost place."""
        return self._open[-1]

    def enter_part(self, name: str) -> None:
        """Enter a part of the layer that is being built; an empty name adds nothing."""
        here = self.current
        self._open.append(Scope(_join(here.name, name), _join(here.state, name), here.again, here.build))

    def enter_layer(self, layer: object, own_name: str, default_name: str) -> None:
        """Enter a layer that the one around it would call `default_name`.

        A name gets a number where the same layer has it already, or where the layers around chose it for another one.
        """
        here, name = self.current, own_name or default_name
        if name:
            name = self._number(_join(here.name, name), layer, not own_name)[len(here.name) + bool(here.name) :]
        known = self._layers.get(id(layer))
        state = _join(here.state, name) if known is None else known.scope.state
        self._builds += 1
        scope = Scope(_join(here.name, name), state, here.again or known is not None, self._builds)
        use = _Use(layer, scope, not own_name)
        self._layers.setdefault(id(layer), use)
        if name:
            self._names.setdefault(scope.name, use)
        self._open.append(scope)

    def _number(self, full: str, layer: object, chosen: bool) -> str:
        """Return a full name, with a number where it is taken and may have one."""
        earlier, numbered, number = self._names.get(full), full, 1
        if earlier is None or not (earlier.layer is layer or (chosen and earlier.chosen)):
            return full
        while numbered in self._names:
            number += 1
            numbered = f"{full}#{number}"
        return numbered

    @property
    def depth(self) -> int:
        """The number of places that are open."""
        return len(self._open)

    def leave(self) -> None:
        """Leave the innermost place."""
        self._open.pop()

    def leave_to(self, depth: int) -> None:
        """Leave all places but the outer `depth` ones, as after an error within."""
        del self._open[depth:]

    def is_around_or_within(self, build: int) -> bool:
        """Whether a `build` encloses the one that runs, or ran within it; no longer true of one that is its equal."""
        running = self.current.build
        return build != running and (build > running or any(scope.build == build for scope in self._open))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
