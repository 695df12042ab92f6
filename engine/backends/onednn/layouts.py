"""The layouts in use: the library's descriptors by the shape and the layout name that a graph's tensors carry."""

from __future__ import annotations

from .handles import Descriptor, Engine

PLAIN = ""


class Layouts:
    """The layouts in use, by logical shape and name."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._known: dict[tuple[tuple[int, ...], str], Descriptor] = {}
        self._rows_above: dict[tuple[tuple[int, ...], str], int] = {}

    def add(self, shape: tuple[int, ...], layout: Descriptor, name: str | None = None) -> str:
        """Remember a layout of tensors of `shape`; return its name.

        A weight of groups has an axis more in the library; its name says so even where its bytes are plain, since its
        shape may also be that of a weight without groups.
        """
        if name is None:
            groups = f"{layout.shape[0]} groups " if len(layout.shape) > len(shape) else ""
            name = groups + layout.layout
        self._known.setdefault((shape, name), layout)
        return name

    def add_blocked(self, shape: tuple[int, ...]) -> str:
        """Remember the blocked layout of tensors of `shape`; return its name."""
        return self.add(shape, self.engine.describe_blocked(shape))

    def add_taller(self, shape: tuple[int, ...], above: int, rows: int) -> str:
        """Remember the blocked layout of images in `rows` rows, `above` of zeros before their own; return its name."""
        layout = self.engine.describe_blocked((*shape[:2], rows, shape[3]))
        name = self.add(shape, layout, f"{above} rows above {layout.layout}")
        self._rows_above[shape, name] = above
        return name

    def count_rows_above(self, shape: tuple[int, ...], name: str) -> int | None:
        """Return how many rows of zeros a layout has above each image, or None where it adds no rows."""
        return self._rows_above.get((shape, name))

    def has(self, shape: tuple[int, ...], name: str) -> bool:
        """Whether there is a layout of that name for tensors of `shape`."""
        return name == PLAIN or (shape, name) in self._known

    def of(self, shape: tuple[int, ...], name: str) -> Descriptor:
        """Return the layout of that name."""
        if (shape, name) not in self._known:
            assert name == PLAIN, f"unknown layout {name!r} of {shape}"
            self._known[shape, name] = self.engine.describe_plain(shape)
        return self._known[shape, name]

    def same_bytes(self, shape: tuple[int, ...], a: str, b: str) -> bool:
        """Whether the two layouts put every element at the same place."""
        if a == b:
            return True
        single = len(shape) == 4 and shape[2:] == (1, 1) and shape[1] % self.engine.block == 0
        return single and {a, b} == {PLAIN, self.add_blocked(shape)}
