"""Work on other threads, whose results go to a callback: one pool per process, started with the first
call."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ..locks import lock
from ..run.beside import Job, threads

_lock = lock()
_here = threading.local()
_pool: Any = None


def submit(work: Callable[[], list[Any]], callback: Callable[[Any, Any, str], None], user_data: Any) -> None:
    """Do `work`, then call `callback(results, user_data, error)`: results [] and a text where it failed, ""
    where not; before this returns where no other thread is to be had.

    A callback that raises is reported in the log. Raises Fail in a callback where there is no thread: one
    that asks for the next run, and so on, would never end.
    """
    from concurrent.futures import Future

    from ..errors import Fail

    future: Future[None] = Future()
    job = Job(partial(_work, work, callback, user_data), future)
    if job.given_to(_executor()):
        return
    if not hasattr(_here, "working"):
        job()
        if future.done():
            future.result()
    elif job.withdraw():
        raise Fail("no thread does this run", found="a call in another's callback, and no thread to be had: "
                   "the program ends, or has as many threads as it may", expected="calls while threads start",
                   cure="call run, or end what callbacks begin before the main thread ends")


def _executor() -> Any:
    global _pool
    with _lock:
        if _pool is None:
            _pool = threads(max(4, os.cpu_count() or 1), "orthrus-async")
        return _pool


def _work(work: Callable[[], list[Any]], callback: Callable[[Any, Any, str], None], user_data: Any) -> None:
    results: list[Any] = []
    text = ""
    _here.working = True
    try:
        results = work()
    except Exception as error:
        text = getattr(error, "text", None) or str(error) or type(error).__name__
    try:
        callback(results, user_data, text)
    except Exception:
        logging.getLogger("orthrus").exception("the callback of run_async raised")
    finally:
        del _here.working


def _in_child() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
