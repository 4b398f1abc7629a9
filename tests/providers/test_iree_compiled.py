"""Models that IREE compiled ahead of time: by a session, by `orthrus compile`; and run without a compiler.

The machine that has none is a virtual environment of its own, with links to the packages it is to have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from packaging.requirements import Requirement
from skips import needs
from test_iree import NAME, RNG, perceptron, session

import orthrus as ort
from orthrus.errors import EPFail, Fail
from orthrus.errors import NotImplemented as NotImplementedFail
from orthrus.providers.iree import compiler

pytestmark = needs("IREE")

RUN_WITHOUT_COMPILER = """
import importlib.util, subprocess, sys
subprocess.Popen = None
import numpy as np, orthrus as ort
assert importlib.util.find_spec("iree.compiler") is None
session = ort.InferenceSession(sys.argv[1], providers=["IREEExecutionProvider"], trust=True)
np.save(sys.argv[2], session.run(None, {"x": np.load(sys.argv[3])})[0])
"""


def bare(folder: Path) -> Path:
    """The interpreter of a virtual environment that has what this package requires and IREE's runtime, and
    nothing else: links to the packages of this one."""
    venv.EnvBuilder(symlinks=True).create(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    wanted, seen = ["orthrus-runtime", compiler.RUNTIME], set[str]()
    while wanted:
        if (name := wanted.pop()) in seen:
            continue
        seen.add(name)
        package = metadata.distribution(name)
        needed = map(Requirement, package.requires or ())
        wanted += [r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
        for parts in dict.fromkeys(p.parts[:2 if p.parts[0] == "iree" else 1] for p in package.files or ()):
            link = site.joinpath(*parts)
            link.parent.mkdir(exist_ok=True)
            if parts[0] != ".." and not link.exists():
                link.symlink_to(Path(str(package.locate_file("")), *parts))
    return folder / "bin" / "python"


@pytest.mark.parametrize("embed", ["0", "1"])
def test_a_compiled_model_needs_no_compiler(tmp_path: Path, embed: str) -> None:
    onnx.save(perceptron(), tmp_path / "m.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_embed_mode", embed)
    whole = ort.InferenceSession(tmp_path / "m.onnx", options, providers=[NAME])
    made = onnx.load(tmp_path / "m_ctx.onnx")
    (node,) = made.graph.node
    assert (node.op_type, node.domain) == ("EPContext", "com.microsoft")
    assert len(list(tmp_path.glob("*.bin"))) == (embed == "0")
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([bare(tmp_path / "bare"), "-c", RUN_WITHOUT_COMPILER, tmp_path / "m_ctx.onnx",
                    tmp_path / "y.npy", tmp_path / "x.npy"], check=True,
                   env={**environment, "ORTHRUS_CACHE": "0"})
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), whole.run(None, {"x": x})[0])
    with pytest.raises(Fail, match="exists already"):
        ort.InferenceSession(tmp_path / "m.onnx", options, providers=[NAME])


def compiled(tmp_path: Path, **attributes: Any) -> Path:
    """A compiled model with some of its node's attributes changed."""
    options = ort.SessionOptions()
    options.add_provider(NAME, {})
    path = tmp_path / "made.onnx"
    level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    ort.ModelCompiler(options, perceptron().SerializeToString(),
                      graph_optimization_level=level).compile_to_file(str(path))
    proto = onnx.load(path)
    assert [node.op_type for node in proto.graph.node] == ["EPContext"]
    for attribute in proto.graph.node[0].attribute:
        if attribute.name in attributes:
            attribute.s = attributes[attribute.name]
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(("attribute", "value", "error", "told"), [
    ("ep_cache_context", b"../elsewhere.bin", EPFail, "climbs out"),
    ("ep_cache_context", b"gone.bin", EPFail, "does not exist"),
    ("ep_sdk_version", b"iree 2.9.0", EPFail, "compiled by iree 2.9.0"),
    ("hardware_architecture", b"llvm-cpu riscv64 generic", EPFail, "this machine is"),
    ("hardware_architecture", b"cuda sm_80", EPFail, "runs what is compiled for llvm-cpu"),
    ("source", b"OtherExecutionProvider", NotImplementedFail, "a part compiled for OtherExecutionProvider"),
])
def test_compiled_models_that_do_not_fit(tmp_path: Path, attribute: str, value: bytes, error: type[Exception],
                                         told: str) -> None:
    path = compiled(tmp_path, **{attribute: value})
    with pytest.raises(error, match=told):
        ort.InferenceSession(path, providers=[NAME], trust=True)


def test_a_compiled_part_that_is_none(tmp_path: Path) -> None:
    path = compiled(tmp_path)
    next(tmp_path.glob("*.bin")).write_bytes(b"no module")
    with pytest.raises(EPFail, match="does not load"):
        ort.InferenceSession(path, providers=[NAME], trust=True)


def orthrus(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", "from orthrus.tools.cli.main import main; main()",
                           *map(str, words)], capture_output=True, text=True, check=False)


def test_the_command(tmp_path: Path) -> None:
    onnx.save(perceptron(), tmp_path / "m.onnx")
    done = orthrus("compile", tmp_path / "m.onnx", "--provider", "iree", "--out", tmp_path / "c.onnx",
                   "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["compiled_nodes"] == told["nodes"] and told["files"] == [str(tmp_path / "c.onnx")]
    x = RNG.standard_normal((2, 8)).astype(np.float32)
    with pytest.raises(Fail, match="machine code"):
        ort.InferenceSession(tmp_path / "c.onnx", providers=[NAME])
    np.testing.assert_array_equal(
        ort.InferenceSession(tmp_path / "c.onnx", providers=[NAME], trust=True).run(None, {"x": x})[0],
        session(perceptron()).run(None, {"x": x})[0])


def test_the_command_for_another_machine(tmp_path: Path) -> None:
    onnx.save(perceptron(), tmp_path / "m.onnx")
    done = orthrus("compile", tmp_path / "m.onnx", "--provider", "iree", "--target",
                   "riscv64-unknown-linux-gnu", "--option", "target_cpu=generic-rv64",
                   "--option", "target_features=+m,+a,+f,+d,+c,+v,+zvl256b")
    assert done.returncode == 0, done.stderr
    (node,) = onnx.load(tmp_path / "m_ctx.onnx").graph.node
    texts = {a.name: a.s for a in node.attribute}
    assert texts["hardware_architecture"].startswith(b"llvm-cpu riscv64 generic-rv64 +m")
    with pytest.raises(EPFail, match="this machine is"):
        ort.InferenceSession(tmp_path / "m_ctx.onnx", providers=[NAME], trust=True)


def test_the_command_says_why_there_is_nothing_to_compile(tmp_path: Path) -> None:
    onnx.save(perceptron(), tmp_path / "m.onnx")
    done = orthrus("compile", tmp_path / "m.onnx", "--provider", "null")
    assert done.returncode == 1 and "no part of the model was compiled" in done.stderr


def test_open_shapes_cannot_be_fixed_ahead_of_time(tmp_path: Path) -> None:
    onnx.save(perceptron(), tmp_path / "m.onnx")
    words = ("compile", tmp_path / "m.onnx", "--provider", "iree", "--option", "shapes=fixed")
    done = orthrus(*words)
    assert done.returncode == 1 and "--dim NAME=SIZE" in " ".join(done.stderr.split())
    assert orthrus(*words, "--dim", "N=2").returncode == 0
