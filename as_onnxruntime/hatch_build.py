"""Refuses to be installed where another onnxruntime is, which pip would remove or overwrite in parts."""

from __future__ import annotations

import runpy
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Refusal(BuildHookInterface):
    """Ends a build with the reason, on behalf of the interpreter that it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
        if sys.prefix == sys.base_prefix:
            folders.append(site.getusersitepackages())
        refusal = runpy.run_path(str(Path(self.root, "onnxruntime", "_other.py")))["refusal"]
        if reason := refusal(folders):
            self.app.abort(reason)
