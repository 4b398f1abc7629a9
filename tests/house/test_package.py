"""What a release holds: the wheel every file of `src`, the source distribution all that tests need."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from orthrus.api.version import VERSION

ROOT = Path(__file__).resolve().parents[2]


def tracked(*folders: str) -> set[str]:
    """The files below `folders` that git knows; outside of a clone, those that are there."""
    done = subprocess.run(["git", "ls-files", "-z", "--", *folders], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return {name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}
    below = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(ROOT)) for path in below if "__pycache__" not in path.parts}


def packed(builder: Any) -> set[str]:
    """The files that `builder` would pack, by their place in this repository."""
    files = builder(str(ROOT)).recurse_included_files()
    return {str(Path(file.path).relative_to(ROOT)) for file in files}


def test_the_wheel_holds_every_file_of_the_source() -> None:
    assert tracked("src") - packed(WheelBuilder) == set()
    assert all(name.startswith("src/") for name in packed(WheelBuilder))


@pytest.mark.parametrize("folder", ["src", "as_onnxruntime", "tests", "benchmarks", "docs", "examples",
                                    ".ci", "hatch_build.py"])
def test_the_source_distribution_holds_what_tests_need(folder: str) -> None:
    assert tracked(folder) - packed(SdistBuilder) == set()


def test_the_version_has_its_chapter_among_the_changes() -> None:
    assert WheelBuilder(str(ROOT)).metadata.version == VERSION
    assert f"\n## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_pack_is_made_with_what_the_build_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pip isolates a build, `PYTHONPATH` alone leads to what the build needs."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "needed.py").write_text("")
    ran = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> MagicMock:
        asked = [sys.executable, "-S", "-c", "import needed, orthrus.api.version"]
        ran.append(subprocess_run(asked, env=env, cwd=tmp_path.parent, check=False).returncode)
        return MagicMock(returncode=1, stdout="")
    subprocess_run = subprocess.run
    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.delenv("ORTHRUS_PACK", raising=False)
    module.PackHook(str(ROOT), {}, *[MagicMock()] * 5).initialize("standard", {"force_include": {}})
    assert ran == [0]
