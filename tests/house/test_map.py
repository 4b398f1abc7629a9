"""What docs/design.md and CONTRIBUTING.md say of the tree, against the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from sources import FILES, SOURCE, parsed

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/design.md", "CONTRIBUTING.md")
CROWDED = 28
"""Modules of a folder at most."""


def rows(page: str, heading: str) -> list[str]:
    """The first cells of the table under a heading."""
    chapter = (ROOT / page).read_text("utf-8").partition(f"\n## {heading}")[2].partition("\n## ")[0]
    return [line.split("|")[1] for line in chapter.splitlines() if line.startswith("| `")]


def test_the_map_has_every_folder_and_module() -> None:
    told = [name for cell in rows("docs/design.md", "Layout") for name in re.findall("`([^`]+)`", cell)]
    there = {f"{path.name}/" if path.is_dir() else path.name for path in SOURCE.iterdir()
             if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))}
    assert sorted(told) == sorted(there - {"__init__.py", "__main__.py"})


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_name_are_there(page: str) -> None:
    text = re.sub("```.*?```", "", (ROOT / page).read_text("utf-8"), flags=re.S)
    named = set(re.findall(r"`([\w./-]+\.(?:py|h|md)|[\w./-]+/)`", text))
    paths = [*ROOT.iterdir()]
    paths += [path for folder in ("src", "tests", "docs") for path in (ROOT / folder).rglob("*")]
    there = [f"/{path.relative_to(ROOT).as_posix()}{'/' * path.is_dir()}" for path in paths]
    lost = {name for name in named if not any(path.endswith(f"/{name}") for path in there)}
    assert lost <= {"providers/x/"}


def test_files_that_docstrings_name_are_there() -> None:
    def strings(path: Path) -> list[str]:
        return [node.value.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)]
    there = {"/" + path.relative_to(SOURCE).as_posix() for path in FILES}
    assert {(path.relative_to(SOURCE).as_posix(), name) for path in FILES for text in strings(path)
            for name in re.findall(r"`([\w/]+\.py)`", text)
            if not (ROOT / name).exists() and not any(file.endswith(f"/{name}") for file in there)} == set()


def test_folders_are_not_crowded() -> None:
    folders = [path for path in (SOURCE, *SOURCE.rglob("*")) if path.is_dir()]
    assert {str(path.relative_to(SOURCE)): count for path in folders
            if (count := len(list(path.glob("*.py")))) > CROWDED} == {}
