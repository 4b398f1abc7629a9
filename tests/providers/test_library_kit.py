"""The examples of providers in C and Rust under everything a provider is for: the test kit, the tools, the
sanitizers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import helper
from provider_libraries import ROOT, RUST, C, built
from skips import needs
from typer.testing import CliRunner

import orthrus as ort
from orthrus.errors import Fail
from orthrus.providers import known
from orthrus.providers.library.abi import HEADER
from orthrus.testing import check_provider
from orthrus.tools.cli.main import app

OPERATORS = ("Add", "Mul", "Relu", "MatMul", "Sub")
LANGUAGES = {"C": (C, "ExampleExecutionProvider"), "Rust": (RUST, "RustExecutionProvider")}


@pytest.fixture(scope="module", params=[pytest.param("C", marks=needs("C compiler")),
                                        pytest.param("Rust", marks=needs("Rust"))])
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
            ) -> Iterator[tuple[Path, str]]:
    """A library that is built and registered, and the name of its provider."""
    source, name = LANGUAGES[request.param]
    path = built(source, tmp_path_factory.mktemp("example"))
    ort.register_execution_provider_library("example", str(path))
    yield path, name
    ort.unregister_execution_provider_library("example")


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A model of two layers with a skip, a third of whose nodes are the library's."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) / 4
               for name, shape in (("w", (8, 16)), ("b", (16,)), ("v", (16, 8)))}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], name="in"),
             helper.make_node("Mul", ["p", "b"], ["q"], name="scale"),
             helper.make_node("Relu", ["q"], ["r"], name="relu"),
             helper.make_node("MatMul", ["r", "v"], ["s"], name="out"),
             helper.make_node("Tanh", ["s"], ["t"], name="tanh"),
             helper.make_node("Add", ["t", "x"], ["y"], name="skip")]
    path = tmp_path / "m.onnx"
    onnx.save(model(nodes, [info("x", shape=["n", 8])], [info("y", shape=["n", 8])], weights), path)
    return path


@pytest.mark.slow
def test_the_kit_passes(example: tuple[Path, str]) -> None:
    report = check_provider(known()[example[1]], operators=OPERATORS, types=["float", "int32"])
    assert report.ok, report
    claimed = {row.operator: row for row in report.coverage}
    assert {name for name, row in claimed.items() if row.claimed} == set(OPERATORS) - {"Sub"}


def orthrus(*words: str) -> str:
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.slow
def test_every_tool_takes_it(example: tuple[Path, str], network: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    path, name = example
    monkeypatch.chdir(network.parent)
    monkeypatch.setenv("COLUMNS", "200")
    there = ("--import", str(path), "--provider", name)
    ort.unregister_execution_provider_library("example")
    try:
        told = orthrus("explain", "m.onnx", *there)
        assert "none of Add, Mul, Relu, MatMul" in told and name in told
        orthrus("run", "m.onnx", *there)
        assert re.search(r"\bskip .*\bAdd\b", orthrus("profile", "m.onnx", *there))
        assert name in orthrus("providers", "--import", str(path))
        orthrus("compare", "m.onnx", "--import", str(path), "--a", "cpu", "--b", name)
        assert "passed" in orthrus("check-provider", str(path), "--check", "interface")
        ort.unregister_execution_provider_library(str(path))
        orthrus("perf-test", "m.onnx", "-I", "-r", "3", "--plugin_ep_libs", f"word|{path}", "--plugin_eps",
                name)
    finally:
        for each in (str(path), "word"):
            with contextlib.suppress(Fail):
                ort.unregister_execution_provider_library(each)
        ort.register_execution_provider_library("example", str(path))


@pytest.mark.slow
def test_sessions_of_every_level_agree(example: tuple[Path, str], network: Path) -> None:
    x = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    expected = ort.InferenceSession(network).run(None, {"x": x})
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"):
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(network.with_name(f"{level}.onnx"))
        options.enable_profiling = True
        options.profile_file_prefix = str(network.with_name(level))
        made = ort.InferenceSession(network, options, providers=[example[1]])
        np.testing.assert_allclose(made.run(None, {"x": x})[0], expected[0], rtol=1e-4, atol=1e-6)
        events = json.loads(Path(made.end_profiling()).read_text(encoding="utf-8"))
        assert any(e.get("args", {}).get("provider") == example[1] for e in events)
        again = ort.InferenceSession(network.with_name(f"{level}.onnx"), providers=[example[1]])
        np.testing.assert_allclose(again.run(None, {"x": x})[0], expected[0], rtol=1e-4, atol=1e-6)


def test_the_page_shows_the_example() -> None:
    """What the documentation quotes of the examples is in them, to the letter."""
    page = (ROOT / "docs" / "write-a-provider.md").read_text(encoding="utf-8")
    section = page.partition("## In C or Rust")[2].partition("\n## ")[0]
    quoted = [text for text in re.findall(r"^```\n(.*?)^```", section, re.M | re.S) if "static" in text]
    source = C.read_text(encoding="utf-8")
    assert len(quoted) == 1 and quoted[0] in source
    commands = re.findall(r"^(?:cc|rustc) .*$", section, re.M)
    for command, file in zip(commands, (C, RUST), strict=True):
        flags = {word for word in command.split() if word.startswith("-") and word != "-c"}
        told = re.search(r"^(?: \*|//!) +(?:cc|rustc) .*$", file.read_text(encoding="utf-8"), re.M)
        assert told is not None and flags == {w for w in told[0].split() if w.startswith("-")}
    header = HEADER.read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+)`", section):
        assert name in header or name in ("explain", "Fail", "CreateEpFactories"), name


SANITIZED = """
import sys
import numpy as np
import orthrus as ort
from orthrus.errors import Fail
from orthrus.providers import known
from orthrus.testing import check_provider
ort.register_execution_provider_library("x", sys.argv[1])
report = check_provider(known()["ExampleExecutionProvider"], operators=["Add", "Mul", "Relu", "MatMul"],
                        types=["float"], only=["operators", "partitions"])
assert report.ok, report
"""


@pytest.mark.slow
@needs("C compiler", "Linux")
def test_under_the_sanitizers(tmp_path: Path) -> None:
    """The example, with every access to memory watched: what it is shown lies where it says."""
    path = built(C, tmp_path, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    preloaded = [subprocess.run(["cc", f"-print-file-name=lib{name}.so"], capture_output=True, text=True,
                                check=True).stdout.strip() for name in ("asan", "ubsan")]
    if not all(map(os.path.isabs, preloaded)):
        pytest.skip("this C compiler has no sanitizers")
    done = subprocess.run([sys.executable, "-c", SANITIZED, str(path)], capture_output=True, text=True, env={
        **os.environ, "LD_PRELOAD": " ".join(preloaded), "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc"})
    assert done.returncode == 0, done.stderr[-3000:]
