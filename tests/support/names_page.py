"""A page of docs/ with a table between `<!-- names -->` and `<!-- end -->`, written anew.

In: a page's text, or the paths on a command line, and what gives the table. Out: the page with the table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_PLACE = re.compile(r"(<!-- names -->\n).*?(<!-- end -->)", re.S)


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def with_table(page: str, table: str) -> str:
    """`page` with this table."""
    return _PLACE.sub(lambda found: f"{found[1]}{table}{found[2]}", page)


def rewrite(renewed: Callable[[str], str]) -> None:
    """Renew the pages that the command line names."""
    for argument in sys.argv[1:]:
        page = Path(argument)
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
