"""docs/security.md: every promise, which is a bullet, ends with the tests that hold it, and they exist.

    * What is promised.
      <!-- held by: test_file.py::test_name, test_hostile_inputs.py::test_hostile[name of a case] -->
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = {path.name: path for path in TESTS.rglob("test_*.py")}
PAGE = TESTS.parent / "docs" / "security.md"
HELD = re.compile(r"<!-- held by: ([^>]*) -->\Z")
IDENTIFIER = re.compile(r"(test_\w+\.py)::(test_\w+)(?:\[([^\]]+)\])?\Z")


def promises() -> list[str]:
    """The page's bullets, a line each."""
    text = re.sub(r"^```.*?^```", "", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = re.findall(r"^\* .*(?:\n {2}.*)*", text, re.M)
    return [" ".join(bullet.removeprefix("* ").split()) for bullet in found]


def functions(file: str) -> set[str]:
    tree = ast.parse(FILES[file].read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise[:40])
def test_a_promise_names_tests_that_there_are(promise: str) -> None:
    held = HELD.search(promise)
    assert held is not None, "it names no test"
    for each in held[1].split(", "):
        found = IDENTIFIER.match(each)
        assert found is not None, each
        file, name, case = found.groups()
        assert file in FILES and name in functions(file), each
        assert case is None or any(f'"{case}"' in path.read_text(encoding="utf-8")
                                   for path in TESTS.rglob("*.py") if path != Path(__file__)), each


def test_there_are_promises() -> None:
    assert len(promises()) > 5
