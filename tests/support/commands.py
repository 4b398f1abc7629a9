"""Command lines as tests give them, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.testing import CliRunner


def invoking(app: typer.Typer, *first: str) -> Callable[..., Any]:
    """Gives `app` the words `first` and those that follow, holds it to the exit code `code`, 0 where none is
    told, and answers click's result."""
    def invoke(*words: object, code: int = 0) -> Any:
        found = CliRunner().invoke(app, [*first, *map(str, words)])
        assert found.exit_code == code, f"{found.output}{found.exception!r}"
        assert "Traceback" not in found.output
        return found
    return invoke
