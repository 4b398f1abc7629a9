"""The package under onnxruntime's name: each module is one object, whatever it is called."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import orthrus
from orthrus.api.alias import STAND_IN

ALIASED = "import sys, orthrus\nsys.modules['onnxruntime'] = orthrus\n"

PROGRAMS = {
    "a submodule": """
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
import orthrus.capi.onnxruntime_pybind11_state as own
assert InvalidArgument is own.InvalidArgument
""",
    "a submodule by its whole name": """
import onnxruntime.tools.onnx_model_utils
import orthrus.tools.onnx_model_utils as own
assert sys.modules["onnxruntime.tools.onnx_model_utils"] is own
assert onnxruntime.tools.onnx_model_utils is own
assert own.__name__ == own.__spec__.name == "orthrus.tools.onnx_model_utils"
""",
    "the package that holds it": """
from onnxruntime import tools
import onnxruntime.tools.perf, orthrus.tools
assert tools is orthrus.tools and tools.perf is sys.modules["onnxruntime.tools.perf"]
""",
    "its own first": """
import orthrus.tools.onnx_randomizer as own
import onnxruntime.tools.onnx_randomizer as aliased
assert aliased is own
""",
    "a module that is not there": """
import importlib, importlib.util
assert importlib.util.find_spec("onnxruntime.training") is None
for name in ("onnxruntime.training", "onnxruntime.training.ortmodule"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert str(error) == "No module named 'onnxruntime.training'", error
        assert error.name == "onnxruntime.training", error.name
    else:
        raise AssertionError
""",
    "a module that is not there, by its own name": """
try:
    import orthrus.training
except ModuleNotFoundError as error:
    assert str(error).startswith("No module named 'orthrus.training': "), error
    assert error.name == "orthrus.training" and "PyTorch" in str(error), error
else:
    raise AssertionError
""",
    "reloaded": """
import importlib
import onnxruntime.tools.update_onnx_opset as aliased
assert importlib.reload(aliased) is aliased
assert importlib.util.find_spec("onnxruntime.tools.update_onnx_opset").name == aliased.__name__
""",
    "another name": """
sys.modules["ort"] = orthrus
from ort.capi.onnxruntime_pybind11_state import Fail
from onnxruntime.capi.onnxruntime_pybind11_state import Fail as again
assert Fail is again
""",
    "a tool run as a module": """
import runpy
sys.argv = ["tool", "--help"]
try:
    runpy.run_module("onnxruntime.tools.optimize_onnx_model", run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code
""",
    "one package of it": """
del sys.modules["onnxruntime"]
import orthrus.tools
sys.modules["onnxruntime.tools"] = orthrus.tools
from onnxruntime.tools.make_dynamic_shape_fixed import main
from orthrus.tools.make_dynamic_shape_fixed import main as own
assert main is own
""",
    "classes by their name": """
import pickle
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
assert pickle.loads(pickle.dumps(Fail("text"))).text == "text"
""",
    "two threads": """
import threading
found = []
def load():
    import onnxruntime.tools.symbolic_shape_infer as module
    found.append(module)
threads = [threading.Thread(target=load) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert len(found) == 8 and len(set(map(id, found))) == 1
""",
}


RUN = """
import json
for name, text in json.load(sys.stdin).items():
    sys.modules["onnxruntime"] = orthrus
    print(name, flush=True)
    exec(compile(text, name, "exec"), {"sys": sys, "orthrus": orthrus})
"""


def test_a_module_is_one_object() -> None:
    done = subprocess.run([sys.executable, "-W", "error::ImportWarning", "-c", ALIASED + RUN],
                          input=json.dumps(PROGRAMS), capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1]}: {done.stderr}"


def test_imports_of_others_are_left_alone() -> None:
    code = ("import orthrus, sys\nfinder = sys.meta_path[0]\nimport importlib, json, xml.dom\n"
            "assert importlib.reload(sys.modules['orthrus']) is orthrus\n"
            "assert sum(type(f) is type(finder) for f in sys.meta_path) == 1\n"
            "assert finder.find_spec('xml.dom.minidom', None) is None\n"
            "assert finder.find_spec('orthrus.tools', None) is None")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PROGRAM = """
import importlib.metadata, multiprocessing, subprocess, sys
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
import beside

CHILD = "import onnxruntime, importlib.metadata as m; print(onnxruntime.__name__, m.version('onnxruntime'))"

def name(queue):
    import onnxruntime
    queue.put(onnxruntime.__name__)

if __name__ == "__main__":
    print(onnxruntime.__name__, importlib.metadata.version("onnxruntime"), *sys.argv[1:], flush=True)
    subprocess.run([sys.executable, "-c", CHILD], check=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=name, args=(queue,))
    child.start()
    print(queue.get(), flush=True)
    child.join()
    if "--fail" in sys.argv:
        raise ValueError("as it should")
    sys.exit(7)
"""


def _exec(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from orthrus.tools.cli.main import main; sys.argv[0] = 'orthrus'; main()"
    return subprocess.run([sys.executable, "-c", code, "exec", *arguments], capture_output=True, text=True,
                          cwd=folder)


@pytest.mark.parametrize("as_module", [False, True])
def test_exec_runs_a_program_and_its_children_on_this_package(tmp_path: Path, as_module: bool) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("")
    start = ("-m", "program") if as_module else (str(tmp_path / "program.py"),)
    done = _exec(*start, "--help", "-m", "x y", folder=tmp_path)
    version = orthrus.__version__
    assert done.stdout.splitlines() == [f"orthrus {version} --help -m x y", f"orthrus {version}", "orthrus"]
    assert done.returncode == 7, done.stderr


def test_exec_shows_a_program_s_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("")
    done = _exec("program.py", "--fail", folder=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and "program.py" in lines[1]
    assert lines[-1] == "ValueError: as it should"


def test_exec_says_what_it_lacks(tmp_path: Path) -> None:
    for arguments, words in (((), "name a script"), (("nothing.py",), "there is no file nothing.py")):
        done = _exec(*arguments, folder=tmp_path)
        assert done.returncode == 2 and words in done.stderr


def test_the_folder_on_the_path_is_enough(tmp_path: Path) -> None:
    path = _exec("--path", folder=tmp_path).stdout.strip()
    assert path == STAND_IN
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path, *filter(None, sys.path)])}
    code = ("import onnxruntime, onnxruntime.quantization.calibrate as c\n"
            "import orthrus, orthrus.quantization.calibrate as own\n"
            "assert onnxruntime is orthrus and c is own")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_another_onnxruntime_is_not_mixed_with_this() -> None:
    code = ("import sys, types, orthrus\n"
            "other = sys.modules['onnxruntime'] = types.ModuleType('onnxruntime')\n"
            "other.__file__ = 'elsewhere.py'\n"
            "try:\n    orthrus.install_as_onnxruntime()\n"
            "except RuntimeError as error:\n    assert 'elsewhere.py' in str(error)\n"
            "else:\n    raise AssertionError\n"
            "assert sys.modules['onnxruntime'] is other\ndel sys.modules['onnxruntime']\n"
            "orthrus.install_as_onnxruntime(), orthrus.install_as_onnxruntime()\n"
            "import onnxruntime\nassert onnxruntime is orthrus\n"
            "assert sum('stand_in' in p for p in sys.path) == 1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_stand_in_s_version_is_the_interface_s() -> None:
    found = list(importlib.metadata.distributions(path=[STAND_IN]))
    assert [(d.metadata["Name"], d.version) for d in found] == [("onnxruntime", orthrus.__version__)]
