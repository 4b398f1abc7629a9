"""The distribution in `as_onnxruntime`, whose name is `onnxruntime`: programs and pip take it for that, and
it does not stand beside another one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from skips import needs

import orthrus

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "as_onnxruntime"


def another(folder: Path) -> None:
    """The file by which another onnxruntime is known, below `folder`."""
    file = folder / "onnxruntime" / "capi" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.touch()


def test_its_name_and_version_are_those_of_the_interface() -> None:
    core = WheelBuilder(str(FOLDER)).metadata.core
    assert core.name == "onnxruntime" and "symbolic" in core.optional_dependencies
    assert WheelBuilder(str(FOLDER)).metadata.version == orthrus.__version__


PROGRAM = """
import sys
import orthrus
import orthrus.capi.onnxruntime_pybind11_state as own
folder, other = sys.argv[1:]
sys.path[:] = [folder, other]
try:
    import onnxruntime
except ImportError as error:
    assert other in str(error) and "pip uninstall" in str(error) and error.name == "onnxruntime", error
else:
    raise AssertionError
sys.path.remove(other)
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
assert onnxruntime is orthrus and InvalidArgument is own.InvalidArgument
"""


def test_it_is_this_package_or_says_what_is_in_its_way(tmp_path: Path) -> None:
    another(tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(FOLDER), str(tmp_path)], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr


INSTALLED = """
import importlib.metadata as metadata
import importlib.util
import numpy as np
import onnxruntime, onnxruntime.quantization.calibrate as calibrate
import orthrus, orthrus.quantization.calibrate as own
from onnxruntime.datasets import get_example
assert onnxruntime is orthrus and calibrate is own
assert metadata.version("onnxruntime") == onnxruntime.__version__
assert metadata.packages_distributions()["onnxruntime"] == ["onnxruntime"]
assert importlib.util.find_spec("onnxruntime.training") is None
session = onnxruntime.InferenceSession(get_example("mul_1.onnx"), providers=["CPUExecutionProvider"])
assert session.run(None, {"X": np.ones((3, 2), np.float32)})[0].tolist() == [[1, 2], [3, 4], [5, 6]]
"""


@pytest.mark.slow
@needs("POSIX")
def test_it_is_installed_in_an_environment_without_another(tmp_path: Path) -> None:
    """The environment has what this one has, but onnxruntime."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    place = sysconfig.get_path("purelib", "venv", {"base": str(tmp_path / "venv")})
    for file in Path(sysconfig.get_path("purelib")).iterdir():
        if not file.name.startswith("onnxruntime") and file.suffix != ".pth":
            (Path(place) / file.name).symlink_to(file)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([tmp_path / "venv" / "bin" / "python", *arguments], capture_output=True,
                              text=True, env=environment, cwd=tmp_path)

    install = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", FOLDER)
    done = python(*install)
    assert done.returncode == 0, done.stdout + done.stderr
    done = python("-c", INSTALLED)
    assert done.returncode == 0, done.stderr

    asked = ("-m", "pip", "install", "--dry-run", "--no-index", "--no-deps")
    assert python(*asked, f"onnxruntime[symbolic]=={orthrus.__version__}").returncode == 0
    assert python(*asked, "onnxruntime>=1.16,<2").returncode == 0
    assert python(*asked, "onnxruntime<1.16").returncode != 0

    another(Path(place))
    for refused in (python(*install), python("-c", "import onnxruntime")):
        said = refused.stdout + refused.stderr
        assert refused.returncode != 0 and f"another onnxruntime is installed in {place}" in said
        assert "Uninstalling" not in said
