"""Packages of others, unmodified, give under this package what they give under onnxruntime.

One program per package lies in `programs`; its head names what it needs, as PEP 723 has it, and under
`tool.pip` what is installed without what it requires. Each gets an environment that has nothing else but
onnxruntime and this package, from a wheel, and is run twice: plainly, and by `orthrus exec`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "programs").glob("*.py"))
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.packages


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This package, as it is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "-w", folder, HERE.parents[1])
    return next(folder.glob("*.whl"))


def pip(*arguments: object) -> None:
    """pip's own command, which has to succeed."""
    done = subprocess.run([sys.executable, "-m", "pip", *map(str, arguments), "-q"], capture_output=True,
                          text=True, timeout=900, env=CLEAN)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def head_of(program: Path) -> dict[str, Any]:
    """The program's inline metadata."""
    found = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", program.read_text(), re.MULTILINE)
    assert found, f"{program.name} does not say what it needs"
    return tomllib.loads(re.sub(r"^# ?", "", found[1], flags=re.MULTILINE))


def environment(program: Path, wheel: Path, folder: Path) -> Path:
    """The interpreter of an environment that has what the program needs; made where it is not there yet."""
    python = folder / "bin" / "python"
    head = head_of(program)
    if not (folder / "ready").exists():
        venv.create(folder, clear=True, symlinks=True)
        pip("--python", python, "install", wheel, f"onnxruntime=={metadata.version('onnxruntime')}",
            *head["dependencies"])
        if alone := head.get("tool", {}).get("pip", {}).get("alone"):
            pip("--python", python, "install", "--no-deps", *alone)
        (folder / "ready").touch()
    else:
        pip("--python", python, "install", "--no-deps", "--force-reinstall", wheel)
    return python


def results(python: Path, program: Path, folder: Path, *by: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the program says of itself, and its results."""
    folder.mkdir()
    started = time.perf_counter()
    done = subprocess.run([python, *by, HERE / "results_of.py", program, folder / "results.npz"], cwd=folder,
                          capture_output=True, text=True, timeout=600,
                          env=CLEAN | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"})
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    with np.load(folder / "results.npz") as found:
        arrays = dict(found)
    said = json.loads(str(arrays.pop("__said__")))
    return said | {"seconds": round(time.perf_counter() - started, 1)}, arrays


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_package_gives_what_it_gives_with_onnxruntime(program: Path, wheel: Path, tmp_path: Path) -> None:
    kept = os.environ.get("PACKAGES_ENVIRONMENTS")
    folder = (Path(kept) if kept else tmp_path) / program.stem
    try:
        compared(program, environment(program, wheel, folder), tmp_path)
    finally:
        if not kept:
            shutil.rmtree(folder)


def compared(program: Path, python: Path, tmp_path: Path) -> None:
    """The program's results under both, which have to be equal."""
    theirs, expected = results(python, program, tmp_path / "theirs")
    ours, found = results(python, program, tmp_path / "ours", "-m", "orthrus", "exec")
    assert str(theirs["by"]).startswith("onnxruntime") and str(ours["by"]).startswith("orthrus")
    assert ours["runs"] == theirs["runs"] != 0
    assert found.keys() == expected.keys() and expected
    tolerance = TOLERANCE | head_of(program).get("tool", {}).get("results", {})
    worst = 0.0
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        if value.dtype.kind in "fc":
            np.testing.assert_allclose(found[name], value, **tolerance, err_msg=name)
            worst = max(worst, float(np.nanmax(np.abs(found[name] - value), initial=0)))
        else:
            np.testing.assert_array_equal(found[name], value, name)
    print(f"{program.stem}: {ours['runs']} runs, largest difference {worst:.1e}, "
          f"{theirs['seconds']} s and {ours['seconds']} s")
