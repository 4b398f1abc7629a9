"""The suite stands by itself: what a user has cached neither helps it nor touched, and no clock decides."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from skips import needs

from orthrus import knobs
from orthrus.codegen.object import cache

TESTS = Path(__file__).resolve().parents[1]
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
          "process_time_ns", "thread_time"}


@needs("generated code")
def test_the_cache_is_the_suites_own(tmp_path: Path) -> None:
    assert Path(knobs.CACHE_DIR.value) == TESTS.parent / ".pytest_cache" / "d" / "kernels"
    assert cache.place() == knobs.CACHE_DIR.value
    users = {name: str(tmp_path / name) for name in ("HOME", "XDG_CACHE_HOME", "ORTHRUS_CACHE_DIR")}
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
                           str(TESTS / "run" / "test_results.py")],
                          cwd=TESTS.parent, env={**os.environ, **users}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert list(tmp_path.iterdir()) == []


def test_no_two_files_of_tests_share_a_name() -> None:
    """Most folders are no packages: of two files with one name pytest could import only one."""
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def asks_a_clock(node: ast.AST, times: set[str]) -> bool:
    """Whether there is a clock's time in an expression, or one of the variables `times`."""
    return any(isinstance(each, ast.Name) and each.id in times
               or isinstance(each, ast.Attribute) and each.attr in CLOCKS
               and isinstance(each.value, ast.Name) and each.value.id == "time" for each in ast.walk(node))


def asked_of_a_clock(path: Path) -> Iterator[str]:
    """The assertions of a file of tests that compare times."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        times: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and asks_a_clock(getattr(node.value, "func", node.value), times):
                times |= {each.id for target in node.targets for each in ast.walk(target)
                          if isinstance(each, ast.Name)}
        yield from (f"{path.name}:{node.lineno}" for node in ast.walk(function)
                    if isinstance(node, ast.Assert) and asks_a_clock(node.test, times))


@pytest.mark.slow
def test_no_assertion_asks_a_clock() -> None:
    """Machines differ, and so does what else they do: work is counted (`tests/support/counting.py`)."""
    assert [place for path in sorted(TESTS.rglob("test_*.py")) for place in asked_of_a_clock(path)] == []
