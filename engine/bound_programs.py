"""The programs of a session that are bound, at most so many: the one that was used least recently leaves for a new one.

A program's bound steps take memory outside the arena, up to 10 MiB for ResNet-50, and a run may ask for as many
programs as there are sizes of batches. The training step of a full batch stays, as all others rely on where it has the
state. What a program that left was planned with is known further: the names of its kernels are a part of checkpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from .executor import Executor
from .programs import Mode, Planned, name_program

MOST_PROGRAMS = 5
"""The training step of a full batch, with those of a short last batch in training, in evaluation and in prediction,
and evaluation of a full batch. A session holds no more."""

Key = tuple[Mode, int]
"""What a program computes, and of how many images."""


class BoundPrograms:
    """Holds bound programs by what they compute and of how many images.

    Args:
        staying: the program that never leaves.
    """

    def __init__(self, staying: Key) -> None:
        self._staying = staying
        self._programs: OrderedDict[Key, tuple[Planned, Executor]] = OrderedDict()
        self._kernels: dict[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def find(self, key: Key) -> tuple[Planned, Executor] | None:
        """Return a program, as the one used last from now on; None where it is not bound."""
        found = self._programs.get(key)
        if found is not None:
            self._programs.move_to_end(key)
        return found

    def add(self, key: Key, planned: Planned, executor: Executor) -> bool:
        """Add a program; return whether another one had to leave."""
        self._programs[key] = planned, executor
        mode, batch = key
        if mode is Mode.TRAINING:
            self._kernels[name_program(mode, batch)] = planned.kernel_names
        if len(self._programs) <= MOST_PROGRAMS:
            return False
        leaving = next(known for known in self._programs if known != self._staying)
        self._programs.pop(leaving)[1].release()
        return True

    def list_kernels(self) -> Mapping[str, tuple[str, ...]]:
        """Return the kernels of all training programs that were ever added, by the name of the program."""
        return self._kernels

    def clear(self) -> None:
        """Let all programs go, and forget what they were."""
        for _, executor in self._programs.values():
            executor.release()
        self._programs.clear()
        self._kernels.clear()
