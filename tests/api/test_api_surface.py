"""Every public name of onnxruntime is here, with the members and parameter names that its users rely on."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import orthrus

RECORD = json.loads((Path(__file__).parent / "data" / "ort_api_names.json").read_text(encoding="utf-8"))
MODULES: dict[str, dict[str, Any]] = RECORD["modules"]

NOT_OURS: dict[str, str] = {
    "capi.onnxruntime_pybind11_state.pack_fp4_weights_for_cuda_moe_gemm": "for onnxruntime's CUDA kernels",
}
"""Names that are left out, with the reason."""
IMPORTED = {"Any", "Callable", "Sequence", "IntEnum", "annotations", "collections", "np", "os", "typing",
            "warnings", "weakref", "linecache", "platform"}
"""Names that onnxruntime's own modules import for themselves."""
NAMES = [(module, name) for module, names in MODULES.items() for name in names
         if name not in IMPORTED and f"{module}.{name}" not in NOT_OURS]


def found(module: str, name: str) -> Any:
    where = "orthrus" if module == "onnxruntime" else f"orthrus.{module}"
    return getattr(importlib.import_module(where), name)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda v: v)
def test_a_name_is_here(module: str, name: str) -> None:
    entry, ours = MODULES[module][name], found(module, name)
    kind = entry["kind"]
    if kind == "class":
        assert isinstance(ours, type)
    elif kind == "exception":
        assert issubclass(ours, Exception)
    elif kind.startswith("enum"):
        assert issubclass(ours, enum.Enum)
    elif kind == "module":
        assert inspect.ismodule(ours)
    elif "function" in kind or "builtin" in kind:
        assert callable(ours)


CLASSES = [(module, name) for module, name in NAMES if MODULES[module][name].get("members")]


@pytest.mark.parametrize(("module", "name"), CLASSES, ids=lambda v: v)
def test_a_class_has_every_member(module: str, name: str) -> None:
    entry, ours = MODULES[module][name], found(module, name)
    if entry["kind"].startswith("enum"):
        assert {k: m.value for k, m in ours.__members__.items()} == entry["members"]
        return
    missing = [member for member in entry["members"] if not hasattr(ours, member)]
    assert not missing


SIGNED = [(module, name, member) for module, name in CLASSES for member,
          parameters in MODULES[module][name]["members"].items() if isinstance(parameters, list) and module
          == "onnxruntime"]


@pytest.mark.parametrize(("module", "name", "member"), SIGNED, ids=lambda v: v)
def test_a_method_takes_the_same_parameters(module: str, name: str, member: str) -> None:
    theirs = [p for p in MODULES[module][name]["members"][member] if p not in ("self", "cls")]
    signature = inspect.signature(getattr(found(module, name), member))
    ours = [str(p).partition(":")[0].partition("=")[0].strip() for p in signature.parameters.values()
            if p.name != "self"]
    assert ours[:len(theirs)] == theirs


@pytest.mark.parametrize("name", [n for n, e in MODULES["onnxruntime"].items()
                                  if e.get("parameters") is not None])
def test_a_function_takes_the_same_parameters(name: str) -> None:
    theirs = MODULES["onnxruntime"][name]["parameters"]
    assert list(inspect.signature(getattr(orthrus, name)).parameters) == theirs


def test_exceptions_stand_beside_each_other() -> None:
    for name, entry in MODULES["capi.onnxruntime_pybind11_state"].items():
        if entry["kind"] == "exception":
            assert found("capi.onnxruntime_pybind11_state", name).__bases__ == (Exception,)


def test_both_names_of_the_compiled_module_hold_the_same() -> None:
    state = importlib.import_module("orthrus.capi.onnxruntime_pybind11_state")
    again = importlib.import_module("orthrus.capi._pybind_state")
    for name in state.__all__:
        assert getattr(again, name) is getattr(state, name)
    assert importlib.import_module("orthrus.capi.onnxruntime_inference_collection").C is again


def test_everything_listed_can_be_imported() -> None:
    for name in orthrus.__all__:
        assert getattr(orthrus, name) is not NotImplemented
    assert set(orthrus.__all__) <= set(dir(orthrus))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = orthrus.nothing


def test_the_version_is_the_level_of_the_api() -> None:
    assert tuple(map(int, orthrus.__version__.split("."))) >= (1, 23)
    assert orthrus.__version__ == orthrus.get_version_string() == RECORD["version"]
    assert orthrus.orthrus_version in orthrus.get_build_info()


def test_an_import_brings_in_nothing_heavy_and_prints_nothing() -> None:
    code = ("import sys, orthrus\nheavy = ['onnx', 'llvmlite', 'ml_dtypes', 'orthrus.ops', "
            "'orthrus.load', 'orthrus.providers', 'ctypes.util']\n"
            "print([m for m in heavy if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
