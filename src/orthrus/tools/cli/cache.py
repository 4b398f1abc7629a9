"""`orthrus cache`: what is kept on disk for the sessions to come, and how to fill and empty it.

In: one of list, size, clear and warm, and for warm a model. Out: a table, or what was done.
"""

from __future__ import annotations

import enum
import functools
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ...shown import tell
from .arguments import (
    InputOption,
    JsonOption,
    LevelOption,
    ProviderOption,
    SeedOption,
    SettingOption,
    ShapeOption,
    console,
    print_json,
    session_of,
)


class Action(enum.StrEnum):
    """What may be done with the cache."""

    LIST, SIZE, CLEAR, WARM = "list", "size", "clear", "warm"


ActionArgument = Annotated[Action, typer.Argument(
    help="list: what is kept; size: its bytes; clear: forget all of it; warm: make and run MODEL's session "
         "until nothing is left to be compiled.", show_default=False)]
ModelArgument = Annotated[Path | None, typer.Argument(
    metavar="MODEL", help="A model to warm the cache for.", show_default=False)]


def command(action: ActionArgument, model: ModelArgument = None, input: InputOption = None,
            shape: ShapeOption = None, seed: SeedOption = 0, provider: ProviderOption = None,
            option: SettingOption = None, level: LevelOption = "all", as_json: JsonOption = False) -> None:
    """List, measure, clear or fill the cache of compiled kernels and of whole sessions."""
    from ...codegen.object import cache
    from .display import size_text, table

    if (action is Action.WARM) != (model is not None):
        raise typer.BadParameter("a model is needed to warm the cache for, and for nothing else")
    if model is not None:
        warm(str(model), {"input": input or [], "shape": shape or []}, seed,
             lambda: session_of(model, provider, option, None, level, seed))
    if action is Action.CLEAR:
        files, size = cache.clear()
        tell(f"removed {files} files, {size_text(size)}")
        return
    kinds = [(what, len(found), sum(size for size, _ in found), max(used for _, used in found))
             for what, found in cache.contents().items() if found]
    total = sum(size for _, _, size, _ in kinds)
    if as_json:
        print_json({"folder": cache.place(), "bytes": total, "kinds": [
            dict(zip(("what", "files", "bytes", "used"), kind, strict=True)) for kind in kinds]})
    elif action is Action.SIZE:
        tell(total)
    else:
        rows = [(what, files, size_text(size), time.strftime("%Y-%m-%d %H:%M", time.localtime(used)))
                for what, files, size, used in kinds]
        console().print(table(f"{cache.place() or 'there is no folder for a cache'}, {size_text(total)}",
                              ("what", "files", "size", "last used"), rows, right=(1, 2)))


def warm(model: str, given: dict[str, Any], seed: int, make: Any) -> None:
    """Make a session and run it, twice: a session is kept when its model comes a second time."""
    from . import feeds

    for _ in range(2):
        with make() as session:
            fed, _ = feeds.fed(model, session.get_inputs(), given["input"], given["shape"], seed,
                               functools.partial(session.run, None))
            session.run(None, fed.values)
            for thread in threading.enumerate():
                if thread.name == "orthrus-keep":
                    thread.join()
