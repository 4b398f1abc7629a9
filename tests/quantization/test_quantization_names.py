"""Every public name of onnxruntime.quantization is importable under the same path, with the same parameters
and values."""

from __future__ import annotations

import enum
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quantization_names import MODULES, NOT_HERE, path, renewed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quantization.md"
PACKAGES = ("", "fusions", "execution_providers.qnn", "neural_compressor")
"""Packages that offer what their modules define."""


def listed(packages: bool) -> list[tuple[str, str]]:
    return [(module, name) for module, names in MODULES.items() if (module in PACKAGES) == packages
            for name in names if f"{module}.{name}" not in NOT_HERE]


def found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(path(module)), name)


@pytest.mark.parametrize("module", [m for m in MODULES if any(here == m for here, _ in listed(False))
                                    or m in PACKAGES], ids=lambda v: v or "the package")
def test_a_module_is_here(module: str) -> None:
    assert importlib.import_module(path(module)).__name__ == path(module)


def test_every_module_is_found_under_another_name() -> None:
    names = [path(m).replace("orthrus", "onnxruntime") for m, _ in dict.fromkeys(listed(False))]
    code = ("import importlib, sys, orthrus\nsys.modules['onnxruntime'] = orthrus\n"
            f"for name in {sorted({*names})!r}:\n"
            "    own = importlib.import_module(name.replace('onnxruntime', 'orthrus'))\n"
            "    assert importlib.import_module(name) is own, name\n"
            "    assert importlib.util.find_spec(own.__name__).name == own.__name__, name")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("package", "name"), listed(True), ids=lambda v: v)
def test_a_package_offers_what_its_modules_define(package: str, name: str) -> None:
    module = MODULES[package][name]
    expected = found(module, name) if name in MODULES[module] else importlib.import_module(path(module))
    assert found(package, name) is expected


def parameters(function: Any) -> Iterator[tuple[Any, ...]]:
    """Name, kind and default of each parameter; the name that a method has for its object is its own. A list
    or a dict by default, which calls would share, is as good as none or as a tuple."""
    for place, it in enumerate(inspect.signature(function).parameters.values()):
        default = tuple(it.default) if isinstance(it.default, list | dict | tuple) else it.default
        if place or it.name not in ("self", "cls"):
            yield it.name, it.kind, None if default == () else default


def same_parameters(ours: Any, theirs: str, module: str) -> None:
    """Fail where `ours` takes others than the text `theirs` says, its defaults read in the module; more may
    follow, if they need not be given."""
    within = vars(importlib.import_module(path(module)))
    expected = list(parameters(eval(f"lambda {theirs}: None", dict(within))))
    found = list(parameters(ours))
    if "from_string" in getattr(ours, "__name__", ""):
        assert len(found) == len(expected) == 1, "one reader of names serves all enums"
    else:
        assert found[:len(expected)] == expected
        assert all(default is not inspect.Parameter.empty for _, _, default in found[len(expected):])


@pytest.mark.parametrize(("module", "name"), listed(False), ids=lambda v: v)
def test_a_name_is_what_it_is_there(module: str, name: str) -> None:
    entry, ours = MODULES[module][name], found(module, name)
    if entry is None:
        return
    if isinstance(entry, str):
        same_parameters(ours, entry, module)
        return
    assert isinstance(ours, type)
    members = {member: told for member, told in entry.items() if f"{module}.{name}.{member}" not in NOT_HERE}
    fields = {field for kind in ours.__mro__ for field in vars(kind).get("__annotations__", ())}
    missing = [member for member in members if not hasattr(ours, member) and member not in fields]
    assert not missing, f"{name} lacks {', '.join(missing)}"
    for member, told in members.items():
        if isinstance(told, int):
            assert issubclass(ours, enum.Enum) and ours[member].value == told, member
        elif isinstance(told, str) and member not in fields:
            same_parameters(getattr(ours, member), told, module)


@pytest.mark.parametrize("first", ["import orthrus.quantization.quantize",
                                   "from orthrus.quantization import quantize_static"])
def test_the_function_quantize_stands_before_its_module(first: str) -> None:
    code = (f"{first}\nimport sys\nfrom orthrus.quantization import quantize\n"
            "assert callable(quantize), quantize\n"
            "assert sys.modules['orthrus.quantization.quantize'].quantize is quantize")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_lists_every_name() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "<!-- names -->" in page
    assert renewed(page) == page, "run python tests/support/quantization_names.py docs/quantization.md"


def test_what_is_left_out_is_left_out() -> None:
    for name in NOT_HERE:
        module = max((m for m in MODULES if name.startswith(f"{m}.")), key=len)
        assert not hasattr(importlib.import_module(path(module)), name.removeprefix(f"{module}.")), name
        first, _, member = name.removeprefix(f"{module}.").partition(".")
        assert not member or not hasattr(found(module, first), member), name


def test_names_are_replaced_in_nodes_of_some_operators() -> None:
    from onnx import helper

    from orthrus.quantization.neural_compressor.onnx_model import ONNXModel

    def replaced(method: str, *given: str, **options: list[str]) -> list[list[str]]:
        nodes = [helper.make_node(kind, ["x"], ["x"]) for kind in ("Relu", "Neg")]
        model = ONNXModel(helper.make_model(helper.make_graph(nodes, "g", [], [])))
        getattr(model, method)(*given, **options)
        return [[*node.input, *node.output] for node in model.nodes()]

    inputs, outputs = "replace_input_of_all_nodes", "replace_output_of_all_nodes"
    assert replaced(inputs, "x", "y") == [["y", "x"], ["y", "x"]]
    assert replaced(inputs, "x", "y", white_optype=["Neg"]) == [["x", "x"], ["y", "x"]]
    assert replaced(outputs, "x", "y", black_optype=["Neg"]) == [["x", "y"], ["x", "x"]]
