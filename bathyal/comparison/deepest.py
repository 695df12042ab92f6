"""The search for the deepest network that fits: over its number of blocks, with as few attempts as possible.

An attempt says which share of what is allowed a number of blocks needs (1 is all of it). Memory, disk and seconds grow
about in proportion to the blocks, so the next number is read off the last one; where an attempt says only that it did
not fit, the bracket is halved. Does not check that what is needed grows with the number.
"""

from __future__ import annotations

from collections.abc import Callable

STEP_UP = 1.25
"""Growth after an attempt that fitted and does not say which share it needed."""


def search_deepest(attempt: Callable[[int], float | None], start: int, within: float, *, others: int = 0) -> int:
    """Return the largest number found that fits; 0 where not even 1 fits.

    Args:
        attempt: returns the share of what is allowed that a number needs: at most 1 where it fits, more where it does
            not; None where it does not fit and the share is unknown, 0 where it fits and the share is unknown.
        start: the first number.
        within: how near to the limit is enough: the share that may be left, or the relative width of the bracket.
        others: blocks that are there besides the number, which a proportion counts too.
    """
    low, high, number = 0, 0, max(start, 1)
    while True:
        share = attempt(number)
        if share is not None and share <= 1:
            low = number
            if share >= 1 - within:
                return low
        else:
            high = number
        if high and high - low <= max(1, int(within * high)):
            return low
        number = _choose_next(low, high, number, share and share / (1 - within / 2), others)


def _choose_next(low: int, high: int, number: int, share: float | None, others: int) -> int:
    """Return the next number inside the bracket: in proportion to the share of the aim, the middle, or further up."""
    if share:
        guess = int((number + others) / share) - others
    elif high:
        guess = (low + high) // 2
    else:
        guess = int(number * STEP_UP)
    if high and not low < guess < high:
        guess = (low + high) // 2
    return max(guess, low + 1)
