"""What a release holds: the wheel every file of `src`, the source distribution all that tests need."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

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
