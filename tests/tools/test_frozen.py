"""What PyInstaller's hook puts into a program: all that a session imports by name, or reads."""

from __future__ import annotations

import importlib.util
import pkgutil
import runpy
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest

import orthrus
from orthrus import providers
from orthrus.lowering.rule_sets import INDEX as RULES
from orthrus.ops.define import INDEX as OPERATORS
from orthrus.tools import frozen

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the hook says, to a PyInstaller that only answers."""
    double: Any = types.ModuleType("PyInstaller.utils.hooks")
    double.collect_submodules = lambda name, filter: [
        each.name for each in pkgutil.walk_packages(orthrus.__path__, f"{name}.", lambda name: None)
        if filter(each.name)]
    double.collect_data_files = lambda name, **only: [(name, only)]
    monkeypatch.setitem(sys.modules, "PyInstaller.utils.hooks", double)
    [folder] = frozen.folders()
    return runpy.run_path(f"{folder}/hook-orthrus.py")


def test_modules_that_are_imported_by_name(hook: dict[str, Any]) -> None:
    wanted = {f"{index.package}.{module}" for index in (OPERATORS, RULES) for module in index.modules}
    wanted |= {f"orthrus.providers.{where.partition(':')[0]}" for where in providers._OWN.values()}
    wanted |= {module for module, _ in orthrus._LATER.values() if module != "orthrus.torch"}
    assert len(wanted) > 60 and wanted <= set(hook["hiddenimports"])
    assert all(importlib.util.find_spec(each) for each in wanted)


def test_what_others_bring_stays_away(hook: dict[str, Any]) -> None:
    assert {each.split(".")[1] for each in hook["hiddenimports"]}.isdisjoint(hook["ASKED_FOR"])
    assert all(importlib.util.find_spec(f"orthrus.{each}") for each in hook["ASKED_FOR"])


def test_data_and_sources(hook: dict[str, Any]) -> None:
    """Without the sources, and LLVM's version, no kernel is kept."""
    assert ("orthrus", {}) in hook["datas"] and hook["module_collection_mode"] == "pyz+py"
    assert any(name == "llvmlite" and only["includes"] == ["_version.py"] for name, only in hook["datas"])


def test_it_is_found() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    where, _, function = project["entry-points"]["pyinstaller40"]["hook-dirs"].partition(":")
    assert where == frozen.__name__ and getattr(frozen, function) is frozen.folders
