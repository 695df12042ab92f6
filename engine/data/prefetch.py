"""Work ahead of its consumer, in threads, in order and within a bound.

Decides when the next item is started: when a result is handed over. Results come in the order of the items, however
many threads there are and whichever finishes first. At most `ahead` items are waiting or in work, besides the one that
is handed over: `count_results_alive(ahead)` in all, where the consumer drops each before it asks for the next. A `for`
loop that does not holds one more at that moment.

The threads live as long as the iteration: they end with its last item, with the first error, and when the consumer
stops early (closing a generator runs its `finally`). Does not help work that holds the interpreter lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREAD_NAME = "bathyal-prefetch"
"""How the names of the threads begin."""


def count_results_alive(ahead: int) -> int:
    """Return the largest number of results in memory at once, for a consumer that drops each before the next."""
    return ahead + 1


def run_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, ahead: int
) -> Generator[Result, None, None]:
    """Yield work(item) for each item in order, computed in `workers` threads up to `ahead` items early.

    An error of the work is raised where its result would have come: after the results before it.
    """
    assert workers >= 1 and ahead >= 1, (workers, ahead)
    remaining = iter(items)
    pool = ThreadPoolExecutor(min(workers, ahead), thread_name_prefix=THREAD_NAME)
    pending: deque[Future[Result]] = deque()
    try:
        pending.extend(pool.submit(work, item) for item in islice(remaining, ahead))
        while pending:
            pending[0].result()  # Waits here, before the next item is started.
            pending.extend(pool.submit(work, item) for item in islice(remaining, 1))
            # No local name for the result: it would keep the consumer's batch alive beyond its use.
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
