"""Skips follow the table in `skips.py`: others fail, needs say what to install, the end counts by reason."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import skips

ROOT = Path(__file__).parents[2]
SKIPPING = ("pytest.skip", "pytest.mark.skipif", "pytest.importorskip")
TESTS = """
import warnings
import numpy as np
import pytest
from skips import needs

def test_known():
    pytest.skip("onnxruntime does not run it: really")
def test_unknown():
    pytest.skip("because")
@pytest.mark.skipif(True, reason="for a whim")
def test_unknown_mark(): ...
@needs("nothing")
def test_lacking(): ...
@pytest.mark.parametrize("x", [])
def test_of_nothing(x): ...
def test_numpy_warns():
    np.mean([])
"""


def pytest_on(tests: Path, *arguments: str) -> str:
    """What pytest says of a file of tests, with this repository's settings and hooks."""
    program = ("import sys, pytest, skips; "
               "skips.NEEDS['nothing'] = skips.Need(lambda: False, 'nothing here', extra=True); "
               "sys.exit(pytest.main(sys.argv[1:]))")
    found = [str(ROOT / "tests"), str(ROOT / "tests" / "support"), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-c", program, "-n", "0", "-p", "conftest", "-p", "no:cacheprovider", "-c",
         str(ROOT / "pyproject.toml"), "--rootdir", str(tests.parent), *arguments, str(tests)],
        capture_output=True, text=True, cwd=tests.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(found)})
    return done.stdout + done.stderr


def test_only_reasons_of_the_table_are_skips(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    told = pytest_on(tmp_path / "test_some.py")
    lines = told.splitlines()
    assert "2 failed, 2 skipped, 2 errors" in lines[-1], told
    counted = lines[next(i for i, line in enumerate(lines) if "skipped, by reason" in line):][1:3]
    assert sorted(counted) == ["    1  nothing here", "    1  onnxruntime does not run it"]
    for why in ("because", "for a whim", "got empty parameter set", "RuntimeWarning: Mean of empty slice"):
        assert why in told
    assert "1 skipped, 5 deselected" in pytest_on(tmp_path / "test_some.py", "-m", "extra").splitlines()[-1]


def test_modules_follow_the_table(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("import pytest\npytest.skip('so', allow_module_level=True)")
    told = pytest_on(tmp_path / "test_some.py")
    assert "skipped for a reason that tests/support/skips.py does not have: so" in told
    assert "1 error" in told.splitlines()[-1]


def reasons(path: Path) -> Iterator[str]:
    """The reasons written in a file's `skip` and `skipif`: of an f-string its beginning."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in SKIPPING:
            given = [*call.args[:ast.unparse(call.func) == "pytest.skip"],
                     *(k.value for k in call.keywords if k.arg == "reason")]
            for text in given:
                start = text.values[0] if isinstance(text, ast.JoinedStr) else text
                if isinstance(start, ast.Constant):
                    yield str(start.value)


@pytest.mark.slow
def test_reasons_that_come_up_elsewhere_are_in_the_table_too() -> None:
    found = [f"{path.name}: {text}" for path in sorted(ROOT.glob("tests/**/*.py")) for text in reasons(path)
             if skips.known_reason(text) is None]
    assert found == []


def test_every_need_is_one_that_can_be_told() -> None:
    reasons = [need.reason for need in skips.NEEDS.values()] + [*skips.OTHERWISE]
    assert all(reasons)
    for name, need in skips.NEEDS.items():
        assert isinstance(need.here(), bool), name
        assert skips.known_reason(need.reason) == need.reason
        assert skips.lacking(name) in (None, need.reason)


def test_a_need_has_a_line_of_the_table() -> None:
    with pytest.raises(AssertionError):
        skips.needs("no such need")
