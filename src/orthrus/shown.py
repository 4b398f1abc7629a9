"""Text that comes from a model, or quotes one, as it may be shown; and sizes as people read them.

In: any text. Out: the same without what a terminal would obey instead of print: control characters other than
the end of a line and the tab, characters that turn the direction of writing, and halves of characters, each
in Python's notation.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Sequence

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """`text`, harmless on a terminal."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def shown_in_json(text: str) -> str:
    """JSON `text`, which stays the same data."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Shown(logging.Formatter):
    """A log's messages, as they may be shown."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as HTML, for a notebook."""
    from html import escape

    def row(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(shown(str(cell)))}</{tag}>" for cell in cells) + "</tr>"
    return f"<table>{row(head, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def size_text(count: int) -> str:
    """Bytes for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def meant(given: str, known: Iterable[str]) -> str:
    """A question that names what is spelled much like `given`; empty where nothing is."""
    from difflib import get_close_matches

    found = get_close_matches(given, sorted(known), 1, 0.7)
    return f"did you mean {found[0]}?" if found else ""


def tell(text: object, err: bool = False, end: str = "\n") -> None:
    """Text on stdout or stderr, with nothing in it that a terminal would obey."""
    print(shown(str(text)), file=sys.stderr if err else sys.stdout, end=end, flush=True)
