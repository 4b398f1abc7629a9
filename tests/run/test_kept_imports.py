"""What a session that was kept imports: what it runs, and nothing that makes sessions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from graphs import info, model
from onnx import helper
from skips import needs

pytestmark = needs("door")

PROGRAM = """
import sys, threading, json
import numpy as np
import orthrus as ort
before = set(sys.modules)
session = ort.InferenceSession(sys.argv[1])
session.run(None, {"x": np.ones((2, 4), np.float32)})
for thread in threading.enumerate():
    if thread.name == "orthrus-keep":
        thread.join()
print(json.dumps([type(session._sess._engine).__name__, sorted(set(sys.modules) - before)]))
"""
NEVER = ("orthrus.load", "orthrus.optimize", "orthrus.ops", "orthrus.shapes", "orthrus.partition",
         "orthrus.plan", "orthrus.run.engine", "orthrus.run.small", "orthrus.lowering.lower",
         "orthrus.lowering.native", "orthrus.lowering.rules", "orthrus.codegen.kernels",
         "orthrus.codegen.write.emit", "orthrus.codegen.object.link", "orthrus.codegen.object.pack", "onnx",
         "llvmlite", "ml_dtypes", "inspect", "concurrent.futures", "fractions", "sysconfig")
MOST = 70
"""Modules of any package that come with a kept session and its first run, at most."""


def test_a_kept_session_imports_what_it_runs(tmp_path: Path) -> None:
    names = ["x", *(f"v{i}" for i in range(16))]
    nodes = [helper.make_node("Softmax" if i % 2 else "Neg", [a], [b])
             for i, (a, b) in enumerate(zip(names, names[1:], strict=False))]
    path = tmp_path / "m.onnx"
    path.write_bytes(model(nodes, [info("x", shape=["n", 4])], [info(names[-1], shape=["n", 4])]
                           ).SerializeToString())
    surroundings = {**os.environ, "ORTHRUS_CACHE_DIR": str(tmp_path / "cache"), "ORTHRUS_CACHE": "1",
                    "ORTHRUS_CACHE_SESSIONS": "64"}
    told = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True,
                              env=surroundings, check=True)
        told.append(json.loads(done.stdout))
    assert [kind for kind, _ in told] == ["Engine", "Kept", "Kept"]
    for _, modules in told[1:]:
        wrong = [name for name in modules for never in NEVER if name == never or name.startswith(never + ".")]
        assert not wrong, wrong
        assert len(modules) <= MOST, modules
    assert np.isin(["orthrus.run.engine", "orthrus.lowering.native"], told[0][1]).all()
