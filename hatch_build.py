"""What building a wheel adds to the sources: the pack of ready-made kernels (`orthrus.native.pack`).

`ORTHRUS_PACK` names the machines it is for, "all" for the common ones; by default it is for this one, with
what can be made in `SECONDS`; "none" leaves it out. An editable installation has none. Where it cannot be
made, the wheel is without one, and kernels are compiled when they are first used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SECONDS = 60
"""How long an installation from source may wait for it."""


class PackHook(BuildHookInterface):
    """Puts the pack into the wheel."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.work: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """What making a pack needs: what the package itself does."""
        return [] if os.environ.get("ORTHRUS_PACK") == "none" else [
            each for each in self.build_config.builder.metadata.core.dependencies
            if each.startswith(("numpy", "ml", "onnx", "llvmlite"))]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        names = os.environ.get("ORTHRUS_PACK", "").split()
        if version == "editable" or names == ["none"]:
            return
        self.work = tempfile.TemporaryDirectory()
        file = Path(self.work.name) / "kernels.pack"
        limit = [] if names else [f"--seconds={SECONDS}"]
        plain = {name: value for name, value in os.environ.items() if not name.startswith("ORTHRUS_")}
        # Where pip isolates a build, what the build needs is found by this variable alone.
        found = [str(Path(self.root) / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        surroundings = {**plain, "PYTHONPATH": os.pathsep.join(found), "ORTHRUS_CACHE": "0"}
        done = subprocess.run(
            [sys.executable, "-m", "orthrus.native.pack", str(file), *limit, *names], text=True,
            cwd=self.root, env=surroundings,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode or not file.is_file():
            self.app.display_warning(f"without ready-made kernels: {done.stdout[-2000:]}")
        else:
            self.app.display_info(done.stdout.strip())
            build_data["force_include"][str(file)] = "orthrus/codegen/object/kernels.pack"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.work is not None:
            self.work.cleanup()
