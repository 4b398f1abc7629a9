"""Names that a terminal or a page would obey, through every command and every kind of output."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from skips import needs

from orthrus.shown import shown, shown_in_json

TOOLS = Path(__file__).resolve().parents[2] / "src" / "orthrus" / "tools"
TITLE, CLEAR = "\x1b]0;owned\x07", "\x1b[2J"
NAMES = [TITLE + "a", CLEAR + "b", "\x9b31mc", "d\x08\x08\x7f", "e\r\x1b[1Af", "\u202eg\u2066",
         "[red]h[/red]", "[link=http://evil]i[/link]",
         "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>",
         "x" * 500, "%n%s", "{0}{{x}}"]


def harmless(text: str) -> None:
    """No character but line ends and tabs that a terminal obeys."""
    wrong = {c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t\r"
             or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}
    assert not wrong and not re.search("\r(?!\n)", text), sorted(map(ascii, wrong))


def network(folder: Path, index: bool = False) -> Path:
    """Nodes, tensors, dimensions, metadata and the graph itself with such names. `index`: whether its Gather
    fails at the run."""
    nodes, before = [], NAMES[0] + "x"
    for i, name in enumerate(NAMES):
        nodes.append(helper.make_node("Add" if i % 2 else "Mul", [before, NAMES[1] + "w"], [name], name,
                                      doc_string=name))
        before = name
    nodes.append(helper.make_node("Gather", [before, NAMES[2] + "i"], [NAMES[3] + "y"], TITLE + "gather"))
    weights = [numpy_helper.from_array(np.ones(4, np.float32), NAMES[1] + "w"),
               numpy_helper.from_array(np.array([99 if index else 1]), NAMES[2] + "i")]
    x = helper.make_tensor_value_info(NAMES[0] + "x", 1, [CLEAR + "n", 4])
    y = helper.make_tensor_value_info(NAMES[3] + "y", 1, None)
    graph = helper.make_graph(nodes, TITLE, [x], [y], weights, TITLE)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
                              producer_name=TITLE, doc_string=CLEAR)
    for name in NAMES:
        model.metadata_props.add(key=name, value=name)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def unknown(folder: Path) -> Path:
    """A model that is refused with its names in the message."""
    graph = helper.make_graph([helper.make_node(CLEAR + "Op", ["x"], [TITLE], TITLE)], "g",
                              [helper.make_tensor_value_info("x", 1, [2])],
                              [helper.make_tensor_value_info(TITLE, 1, [2])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              folder / "m.onnx")
    return folder / "m.onnx"


SHAPE = ["--shape", f"{NAMES[0]}x=2,4"]
COMMANDS: dict[str, list[str]] = {
    "info": ["info", "m.onnx"], "info json": ["info", "m.onnx", "--json"],
    "explain": ["explain", "m.onnx", "--nodes"], "explain json": ["explain", "m.onnx", "--json"],
    "run": ["run", "m.onnx", *SHAPE, "--save", "o.npz"], "run json": ["run", "m.onnx", *SHAPE, "--json"],
    "run input": ["run", "m.onnx", "-i", f"{CLEAR}=none.npy"], "profile": ["profile", "m.onnx", *SHAPE],
    "estimate": ["estimate", "m.onnx"], "compare": ["compare", "m.onnx", *SHAPE, "--no-pair"],
    "compare nodes": ["compare", "m.onnx", *SHAPE, "--nodes"], "bisect": ["bisect", "m.onnx", *SHAPE],
    "compile": ["compile", "m.onnx", "--force", "-o", "c.onnx"], "view": ["view", "m.onnx", *SHAPE],
    "perf-test": ["perf-test", "-I", "-r", "1", "-v", "m.onnx"], "test-runner": ["test-runner", "."]}


def run(folder: Path, *args: str, module: str = "orthrus.tools.cli.main", **env: str) -> str:
    start = [sys.executable, "-c", "from orthrus.tools.cli.main import main; main()"]
    if module != "orthrus.tools.cli.main":
        start = [sys.executable, "-m", module]
    done = subprocess.run([*start, *args], cwd=folder, capture_output=True, check=False, timeout=300,
                          env={**os.environ, "COLUMNS": "120", **env})
    text = done.stdout.decode() + done.stderr.decode()
    assert "Traceback" not in text, text
    return text


@pytest.mark.parametrize("model", [network, lambda folder: network(folder, True), unknown],
                         ids=["runs", "fails", "refused"])
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.slow
def test_no_command_prints_what_a_terminal_obeys(name: str, model: Any, tmp_path: Path) -> None:
    folder = model(tmp_path).parent
    (folder / "test_data_set_0").mkdir()
    onnx.save_tensor(numpy_helper.from_array(np.ones((2, 4), np.float32)),
                     str(folder / "test_data_set_0" / "input_0.pb"))
    text = run(folder, *COMMANDS[name])
    harmless(text)
    assert text
    if "--json" in COMMANDS[name] and text.startswith("{"):
        json.loads(text)
    for page in folder.glob("*.html"):
        content = page.read_text(encoding="utf-8")
        for hostile in ("<script>alert", "<img src=x", "</script><script"):
            assert hostile not in content


@pytest.mark.parametrize("name", ["info", "run", "test-runner"])
@pytest.mark.parametrize("model", [network, unknown], ids=["runs", "refused"])
def test_the_commands_used_most(name: str, model: Any, tmp_path: Path) -> None:
    text = run(model(tmp_path).parent, *COMMANDS[name])
    harmless(text)
    assert text


@pytest.mark.parametrize("module", [
    "make_dynamic_shape_fixed", "onnxruntime_test", "optimize_onnx_model", "update_onnx_opset",
    "symbolic_shape_infer", "remove_initializer_from_input", "onnx_randomizer", "offline_tuning"])
@pytest.mark.slow
def test_no_tool_with_onnxruntimes_name_does(module: str, tmp_path: Path) -> None:
    unknown(tmp_path)
    args = {"make_dynamic_shape_fixed": ["--dim_param", CLEAR, "--dim_value", "2", "m.onnx", "o.onnx"],
            "onnxruntime_test": ["m.onnx", "1"], "optimize_onnx_model": ["m.onnx", "o.onnx"],
            "update_onnx_opset": ["--opset", "18", "m.onnx", "o.onnx"],
            "symbolic_shape_infer": ["--input", "m.onnx", "--verbose", "3"],
            "remove_initializer_from_input": ["--input", "m.onnx", "--output", "o.onnx"],
            "onnx_randomizer": ["m.onnx"], "offline_tuning": ["pprint", "m.onnx"]}[module]
    harmless(run(tmp_path, *args, module=f"orthrus.tools.{module}"))


@needs("POSIX")
def test_on_a_terminal_only_colours_are_left(tmp_path: Path) -> None:
    network(tmp_path)
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", "from orthrus.tools.cli.main import main; main()",
                                "info", "m.onnx"], cwd=tmp_path, stdout=theirs, stderr=theirs,
                               env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"})
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    assert process.wait(60) == 0
    assert b"\x1b[1m" in text
    harmless(re.sub("\x1b\\[[0-9;]*m", "", text.decode()))
    assert r"\x1b]0;owned\x07" in text.decode()


def test_what_is_shown_and_what_json_keeps() -> None:
    for code in [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x202E, 0x2066, 0x2028, 0xDCFF, 0x200E]:
        text = f"a{chr(code)}b"
        if text in ("a\nb", "a\tb"):
            assert shown(text) == text
            continue
        harmless(shown(text))
        assert shown(text) == "a" + ascii(chr(code))[1:-1] + "b" and shown(shown(text)) == shown(text)
        told = shown_in_json(json.dumps({text: text}, ensure_ascii=False))
        harmless(told)
        assert json.loads(told) == {text: text}
    assert shown("größer 漢字 😀 é") == "größer 漢字 😀 é"


def test_tools_print_in_one_way() -> None:
    """Nothing under tools prints by itself, or on a console of its own making."""
    for path in sorted(TOOLS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "pprint", "typer.echo", "typer.secho", "click.echo", "Console",
                                      "sys.stdout.write", "sys.stderr.write"), f"{path.name}:{node.lineno}"
