"""`orthrus doctor`: what it finds, what it calls broken, and what it keeps to itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from skips import needs
from typer.testing import CliRunner

from orthrus import knobs
from orthrus.codegen.machines import detect
from orthrus.codegen.machines.machine import FORCED
from orthrus.codegen.object import cache
from orthrus.tools.cli import checkup
from orthrus.tools.cli.main import app

generates = needs("generated code")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Any:
    with knobs.setting(CACHE_DIR=str(tmp_path / "cache")):
        yield


def run(*args: str, code: int = 0) -> str:
    found = CliRunner().invoke(app, ["doctor", *args])
    assert found.exit_code == code, found.output
    return found.output


def checks() -> dict[str, checkup.Check]:
    return {check.name: check for check in checkup.examine().checks}


@generates
def test_a_healthy_machine() -> None:
    text = run()
    assert text.startswith("### orthrus doctor\n") and "**broken**" not in text
    for each in ("#### Machine", "llvmlite", "LLVM", "CPUExecutionProvider: works", "vectors", "threads of",
                 "sessions: 0, "):
        assert each in text
    data = json.loads(run("--json"))
    assert data["healthy"] and {c["name"] for c in data["checks"]} >= {"cache", "a kernel", "a model"}
    assert "gives numpy's numbers" in next(c["found"] for c in data["checks"] if c["name"] == "a kernel")


def test_no_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    with knobs.setting(SKIP="fuse_gelu"):
        text = run()
    assert "hunter2" not in text and str(tmp_path) not in text and "~/cache" in text
    assert "ORTHRUS_SKIP: fuse_gelu" in text and "ORTHRUS_STOP" not in text


@generates
def test_a_forced_machine() -> None:
    here = detect.found()
    name = next(name for name, m in FORCED.items() if here is not None and m.arch == here.arch)
    with knobs.setting(MACHINE=name):
        assert f"forced by ORTHRUS_MACHINE={name}" in run()
    with knobs.setting(MACHINE="none"):
        check = checks()["Code generation"]
    assert check.state == checkup.BROKEN and "ORTHRUS_MACHINE" in check.found and "unset it" in check.cure


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with knobs.setting(CACHE_DIR=str(tmp_path / "file" / "cache")):
        text = run(code=1)
    assert "**broken** cache" in text and "ORTHRUS_CACHE_DIR" in text


def test_a_cache_that_others_may_write(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with knobs.setting(CACHE_DIR=str(folder)):
        found = checks()["cache"]
    assert found.state == "broken" and "chmod" in found.cure


def test_a_damaged_cache(tmp_path: Path) -> None:
    cache.store({64 * "a": b"some code", 64 * "b": b"other code"})
    assert checks()["cache"].state == "ok"
    entry = tmp_path / "cache" / (64 * "a")
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    found = checks()["cache"]
    assert found.state == "note" and "1 files are damaged" in found.found


def test_switched_off_is_no_damage() -> None:
    with knobs.setting(CODEGEN=0, CACHE=0):
        text = run()
    assert "switched off by ORTHRUS_CODEGEN=0" in text and "switched off by ORTHRUS_CACHE=0" in text


def test_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    real = checkup._version
    monkeypatch.setattr(checkup, "_version", lambda name: None if name == "llvmlite" else real(name))
    text = run(code=1)
    assert "**broken** llvmlite" in text and "pip install llvmlite" in text


@generates
def test_wrong_numbers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.codegen.runtime import call_kernel

    monkeypatch.setattr(call_kernel, "run", lambda *_: None)
    assert checks()["a kernel"].state == "broken"


def test_what_cannot_be_examined_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        raise OSError("the disk is on fire")
    monkeypatch.setattr(checkup, "providers", fails)
    assert "the disk is on fire" in run(code=1)


def test_the_memory_limit_of_a_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/memory.max": "1073741824\n",
             "/sys/fs/cgroup/a/b/memory.max": "max\n"}
    monkeypatch.setattr(checkup, "_read", lambda path: files.get(path, ""))
    assert checkup._memory_limit() == 1 << 30
    assert checkup.home(os.path.expanduser("~/x")) == "~/x"
