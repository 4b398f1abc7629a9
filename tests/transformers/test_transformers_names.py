"""Every public name of onnxruntime.transformers is importable under the same path, with the same parameters
and values, or is in the page's table with the reason why not."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from skips import lacking
from transformers_names import MODULES, NOT_HERE, here, path, renewed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transformers.md"
ELSEWHERE = {"numpy", "torch", "onnx"}
"""Packages whose names stand in defaults."""


def imported(module: str) -> Any:
    """The module; the test is skipped where it needs torch, which is not here."""
    try:
        return importlib.import_module(path(module))
    except ModuleNotFoundError as error:
        without = lacking("torch") or lacking("transformers")
        if error.name in ("torch", "transformers", "diffusers") and without:
            pytest.skip(without)
        raise


def parameters(function: Any) -> Iterator[tuple[Any, ...]]:
    """Name, kind and default of each parameter but a method's object. A list or a dict by default, which
    calls would share, is as good as a tuple."""
    for place, it in enumerate(inspect.signature(function).parameters.values()):
        default = tuple(it.default) if isinstance(it.default, list | dict | tuple) else it.default
        if place or it.name not in ("self", "cls"):
            yield it.name, it.kind, None if default == () else default


def differing(ours: Any, theirs: str, module: Any) -> str:
    """How the parameters differ from the text `theirs`, whose defaults are read in the module; "" where they
    do not. More may follow, if they need not be given."""
    within = {**{name: sys.modules[name] for name in ELSEWHERE & sys.modules.keys()}, **vars(module)}
    within.setdefault("np", sys.modules.get("numpy"))
    expected = list(parameters(eval(f"lambda {theirs}: None", within)))
    found = list(parameters(ours))
    more = [name for name, kind, default in found[len(expected):]
            if default is inspect.Parameter.empty and kind not in (inspect.Parameter.VAR_KEYWORD,)]
    return "" if found[:len(expected)] == expected and not more else f"takes {found}, not {expected}"


def members(module: Any, name: str, kind: Any, told: dict[str, Any]) -> Iterator[str]:
    """What a class lacks of its members, or has otherwise."""
    fields = {field for each in kind.__mro__ for field in vars(each).get("__annotations__", ())}
    for member, expected in told.items():
        if f"{module.__name__.split('.', 2)[2]}.{name}.{member}" in NOT_HERE:
            continue
        if not hasattr(kind, member) and member not in fields:
            yield f"{name}.{member} is not here"
        elif isinstance(expected, list) and not (issubclass(kind, enum.Enum)
                                                 and kind[member].value == expected[0]):
            yield f"{name}.{member} is not {expected[0]!r}"
        elif isinstance(expected, str) and (text := differing(getattr(kind, member), expected, module)):
            yield f"{name}.{member} {text}"


@pytest.mark.parametrize("module", here())
def test_a_module_has_its_names(module: str) -> None:
    own = imported(module)
    wrong = []
    for name, told in MODULES[module].items():
        if f"{module}.{name}" in NOT_HERE:
            continue
        if not hasattr(own, name):
            wrong.append(f"{name} is not here")
        elif isinstance(told, str):
            if text := differing(getattr(own, name), told, own):
                wrong.append(f"{name} {text}")
        elif isinstance(told, dict):
            wrong += [line.replace(path(""), "") for line in members(_Named(own, module), name,
                                                                    getattr(own, name), told)]
    assert not wrong, "\n".join(wrong)


class _Named:
    """A module's names, under the path that onnxruntime has for it."""

    def __init__(self, module: Any, name: str) -> None:
        self.__dict__.update(vars(module))
        self.__name__ = path(name)


def test_what_is_left_out_is_left_out() -> None:
    known = {name for module, names in MODULES.items() for name in
             (module, *(f"{module}.{each}" for each in names),
              *(f"{module}.{each}.{member}" for each, told in names.items() if isinstance(told, dict)
                for member in told))}
    assert not NOT_HERE.keys() - known
    for name in NOT_HERE:
        if name in MODULES:
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(path(name))


def test_the_page_lists_every_name() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "<!-- names -->" in page
    assert renewed(page) == page, "run python tests/support/transformers_names.py docs/transformers.md"


PROGRAMS = {
    "a module in a folder": """
import onnxruntime.transformers.bert_test_data as aliased
import orthrus.transformers.bert_test_data as own, orthrus.transformers.measure.bert_test_data as real
assert aliased is own is real and own.__spec__.name == own.__name__ == real.__name__
""",
    "from the package": """
from onnxruntime.transformers import metrics
from onnxruntime.transformers.metrics import Config
assert Config is metrics.Config
""",
    "reloaded": """
import importlib, orthrus.transformers.metrics as own
assert importlib.reload(own) is own
""",
    "one package of it": """
del sys.modules["onnxruntime"]
import orthrus.transformers
sys.modules["onnxruntime.transformers"] = orthrus.transformers
from onnxruntime.transformers.machine_info import MachineInfo
from orthrus.transformers.measure.machine_info import MachineInfo as own
assert MachineInfo is own
""",
    "run as a module": """
import runpy
sys.argv = ["tool", "--help"]
for package, name in (("onnxruntime", "profiler"), ("orthrus", "compare_bert_results")):
    try:
        runpy.run_module(f"{package}.transformers.{name}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code
""",
    "a module that is not there": """
try:
    import onnxruntime.transformers.nothing
except ModuleNotFoundError:
    pass
else:
    raise AssertionError
""",
}
RUN = """
import json, sys, orthrus
for name, text in json.load(sys.stdin).items():
    sys.modules["onnxruntime"] = orthrus
    print(name, flush=True)
    exec(compile(text, name, "exec"), {"sys": sys, "orthrus": orthrus})
"""


def test_a_module_is_one_object() -> None:
    done = subprocess.run([sys.executable, "-W", "error::ImportWarning", "-c", RUN],
                          input=json.dumps(PROGRAMS), capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-200:]}: {done.stderr}"
