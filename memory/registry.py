"""Things that are chosen by name: the ones of the package, to which programs may add their own.

A name stands for one thing as long as the process lives, because plans, checkpoints and shared kernels rely on it. What
the package brings can therefore be neither replaced nor removed. A registry does not know what its things are.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NoReturn, TypeVar

from .errors import ConfigError, one_of

T = TypeVar("T")


class Registry(dict[str, T]):
    """A mapping from names to things that grows by `add` alone.

    It is a dict, so that planners read it as fast as one, whose own ways to change it are refused.

    Args:
        what: what errors call one of the things: "strategy", "kind of operation".
        own: the things that the package brings, in the order in which errors list them.
        take_back: how a program takes back what it added, with {} for the name: "bt.unregister_strategy({})".
    """

    def __init__(self, what: str, own: Mapping[str, T], take_back: str = "remove({})") -> None:
        super().__init__(own)
        self._what = what
        self._take_back = take_back
        self._own = frozenset(own)
        self._lock = threading.Lock()

    def _refuse(self, *arguments: object, **named: object) -> NoReturn:
        raise TypeError(f"a {self._what} is added by `add` and taken back by `remove`")

    __setitem__ = __delitem__ = __ior__ = pop = popitem = clear = update = setdefault = _refuse

    def is_own(self, name: str) -> bool:
        """Return whether the package brings the thing of that name, and no program has added it."""
        return name in self._own

    def find(self, name: str) -> T:
        """Return the thing of that name.

        Raises:
            ConfigError: there is none; the error names the nearest.
        """
        return self[one_of(self._what, name, tuple(self))]

    def add(self, name: str, thing: T) -> None:
        """Add a thing under a name of its own.

        Raises:
            ConfigError: the name is no identifier, or another thing has it.
        """
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise ConfigError(self._what, "a name of letters, digits, '_' and '-'", repr(name))
        with self._lock:
            if name in self and self[name] != thing:
                hint = "Choose another name."
                if name not in self._own:
                    hint = f"Choose another name, or take the earlier one back by {self._take_back.format(repr(name))}."
                raise ConfigError(f"{self._what} {name!r}", "a name that is not taken", "one of that name", hint)
            super().__setitem__(name, thing)

    def remove(self, name: str) -> None:
        """Remove what was added; nothing that has been built with it can be used any more.

        Raises:
            ConfigError: there is no such name, or the thing is the package's own.
        """
        with self._lock:
            if name not in self or name in self._own:
                added = ", ".join(repr(n) for n in self if n not in self._own) or "nothing was added"
                raise ConfigError(self._what, f"the name of an added one ({added})", repr(name))
            super().__delitem__(name)
