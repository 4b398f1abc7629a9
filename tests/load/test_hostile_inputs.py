"""No model and no feed may crash, hang, or take the machine's memory: a typed error or the right answer,
case by case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from skips import lacking

if why := lacking("Linux"):
    pytest.skip(why, allow_module_level=True)

from hostile_cases import CASES


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    here = str(Path(__file__).resolve().parents[1] / "support")
    paths = [here, *(p for p in sys.path if p)]
    process = subprocess.Popen(
        [sys.executable, os.path.join(here, "hostile_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None and json.loads(process.stdout.readline()) == "ready"
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow][:i % 3])
                                  for i, name in enumerate(CASES)])
def test_hostile(server: Any, name: str) -> None:
    server.stdin.write(name + "\n")
    server.stdin.flush()
    said = json.loads(server.stdout.readline())
    assert said == "ok", said
