"""How far a long step is: a second bar on a terminal, which a step that is done soon never shows."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tqdm import tqdm

DELAY_SECONDS = 2.0
"""A step that takes less shows no bar of its own."""


class StepBar:
    """Told by a trainer how far a step is (`Watch`).

    Args:
        shown: whether anything is shown at all.
    """

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        """Show that so many steps of the plan are done.

        A terminal that has gone must not break the step off: what was learned so far would be lost with it.
        """
        if not self._shown:
            return
        with suppress(OSError, ValueError):
            if done == 0 or self._bar is None:
                self.close()
                self._bar = tqdm(total=total, desc="in this step", position=1, leave=False, delay=DELAY_SECONDS)
            self._bar.update(done - self._bar.n)
            if done == total:
                self.close()

    def close(self) -> None:
        """Take the bar away."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with suppress(OSError, ValueError):
                bar.close()

    def __enter__(self) -> StepBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
