"""The package under onnxruntime's name: each module is one object, whatever it is called."""

from __future__ import annotations

import json
import subprocess
import sys

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
try:
    import onnxruntime.training
except ModuleNotFoundError as error:
    assert error.name == "onnxruntime.training", error.name
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
