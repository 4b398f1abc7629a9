"""The flags of every command as tables of Markdown, and a page in which they are brought up to date.

In: a page with lines `<!-- flags: NAME -->` and `<!-- end -->`. Out: the page with the command's table
between them. `python -m orthrus.tools.cli.flags docs/tools.md` rewrites the page; a test holds it to
what this gives.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import typer

from .main import app

_PLACE = re.compile(r"(<!-- flags: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)


def table(command: str) -> str:
    """The table of `command`. Raises KeyError for a name that no command has."""
    group: Any = typer.main.get_command(app)
    rows = ["| flag | meaning |", "|---|---|"]
    for parameter in group.commands[command].params:
        if parameter.name == "help":
            continue
        kind = _metavar(parameter)
        if parameter.param_type_name == "argument":
            names = f"`{kind}`"
        else:
            flags = sorted((*parameter.opts, *parameter.secondary_opts), key=lambda f: (len(f), f))
            names = ", ".join(f"`{flag}`" for flag in flags) + (f" `{kind}`" if kind else "")
        rows.append(f"| {_cell(names)} | {_cell(parameter.help or '')} |")
    return "\n".join(rows) + "\n"


def renewed(page: str) -> str:
    """`page` with every table as the code has it."""
    return _PLACE.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", page)


def _metavar(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False) or getattr(parameter, "count", False):
        return ""
    return parameter.metavar or ("N" if isinstance(parameter.default, int) else "TEXT")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
