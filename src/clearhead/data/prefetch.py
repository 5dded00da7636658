"""Work done ahead of need by threads, handed over in order.

An exception of the work is raised where its result would have come. Whoever stops listening early (by leaving
a loop, by an exception, by Ctrl-C) leaves no thread behind. Knows nothing about what the work is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def made_ahead(
    make: Callable[[Task], Result], tasks: Iterable[Task], workers: int, ahead: int
) -> Iterator[Result]:
    """`make(task)` for each task in order, at most `ahead` of them made before they are asked for.

    >>> list(made_ahead(abs, [-1, -2, -3], workers=2, ahead=2))
    [1, 2, 3]
    """
    if workers == 0:
        yield from map(make, tasks)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="clearhead-batches")
    pending: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            pending.append(pool.submit(make, task))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
