"""Work beside the thread that asks for it: on a pool's threads, or on its own where there are none.

In: a pool and a function. Out: a future of it. The system may give no more threads, and pools take nothing
once the main thread has ended, while other threads go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


def threads(count: int, name: str) -> ThreadPoolExecutor | None:
    """A pool of so many threads, each started when it is needed; None where the interpreter makes none any
    more."""
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:
        return None
    return ThreadPoolExecutor(count, name)


class Job:
    """`work`, to be done once, by whoever comes first; `future` is told how it ended."""

    __slots__ = ("_left",)

    def __init__(self, work: Callable[[], Any], future: Future[None]) -> None:
        self._left = [(work, future)]

    def withdraw(self) -> bool:
        """Whether nobody has begun it, and nobody will."""
        try:
            return bool(self._left.pop())
        except IndexError:
            return False

    def given_to(self, pool: ThreadPoolExecutor | None) -> bool:
        """Have a thread of the pool do it; whether the pool took it. One that has too few threads may come to
        it all the same."""
        if pool is None:
            return False
        try:
            pool.submit(self)
        except RuntimeError:
            return False
        return True

    def __call__(self) -> None:
        try:
            work, future = self._left.pop()
        except IndexError:
            return
        if not future.set_running_or_notify_cancel():
            return
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
            # its traceback holds this frame
            del work, future
        else:
            future.set_result(None)
