"""Files of results: text, and rows of a table. A file is whole or not there."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file at once."""
    beside = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(beside, "w", newline="", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)
    finally:
        if os.path.exists(beside):
            os.unlink(beside)


def write_rows(path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]],
               delimiter: str = ",", more: bool = False) -> None:
    """Write a table with a line of names; with `more` its rows, and the line again, follow those that a file
    has already."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", delimiter=delimiter,
                            lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    before = ""
    if more and os.path.exists(path):
        with open(path, newline="", encoding="utf-8") as file:
            before = file.read()
    write_text(path, before + text.getvalue())
