"""PyInstaller's hook: the modules that are imported by their names, as data and as sources too."""

from __future__ import annotations

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

ASKED_FOR = ("distributed", "serving", "testing", "tools", "torch", "transformers")
"""Packages that a session never needs, and that bring others: a program that imports them gets them."""


def _wanted(name: str) -> bool:
    return name.split(".")[1:2] not in [[each] for each in ASKED_FOR]


hiddenimports = collect_submodules("orthrus", filter=_wanted)
datas = collect_data_files("orthrus") + collect_data_files("llvmlite", include_py_files=True,
                                                           includes=["_version.py"])
module_collection_mode = "pyz+py"
