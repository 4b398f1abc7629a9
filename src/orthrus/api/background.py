"""Work on other threads, whose results go to a callback: one pool per process, started with the first
call."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from ..locks import lock

_lock = lock()
_pool: Any = None


def submit(work: Callable[[], list[Any]], callback: Callable[[Any, Any, str], None], user_data: Any) -> None:
    """Do `work`, then call `callback(results, user_data, error)`: results [] and a text where it failed, ""
    where not.

    A callback that raises is reported in the log.
    """
    _executor().submit(_work, work, callback, user_data)


def _executor() -> Any:
    global _pool
    with _lock:
        if _pool is None:
            from concurrent.futures import ThreadPoolExecutor

            _pool = ThreadPoolExecutor(max(4, os.cpu_count() or 1), "orthrus-async")
        return _pool


def _work(work: Callable[[], list[Any]], callback: Callable[[Any, Any, str], None], user_data: Any) -> None:
    results: list[Any] = []
    text = ""
    try:
        results = work()
    except Exception as error:
        text = getattr(error, "text", None) or str(error) or type(error).__name__
    try:
        callback(results, user_data, text)
    except Exception:
        logging.getLogger("orthrus").exception("the callback of run_async raised")


def _in_child() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
