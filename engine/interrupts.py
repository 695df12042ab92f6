"""When Ctrl-C takes effect: between training steps, so that none is left half done.

Decides from the signal's handler: only Python's own is replaced, for the time of a step, in the main thread. A program
with a handler of its own keeps it. A second Ctrl-C is not held back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hold_back_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for a first Ctrl-C at the end of the block; for a second one at once."""
    python_s_own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not python_s_own or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def handle(number: int, frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt
