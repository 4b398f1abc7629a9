"""Programs that others built for onnxruntime, unchanged: with this library they give the results of their
own, and theirs is not loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dropin
import numpy as np
import pytest
from skips import MODELS, NODE_MODULES, RECORDINGS, needs

import orthrus

pytestmark = [pytest.mark.slow, needs("generated code", "Linux", "C compiler")]
CLIENTS = Path(__file__).parent / "clients"
DIGITS = Path(str(orthrus.__file__)).parent / "demo" / "digits.onnx"


def _results(command: Sequence[str | os.PathLike[str]], **changed: str) -> tuple[list[Any], str]:
    done = subprocess.run(command, env=dropin.surroundings(**changed), capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def _compare(command: Sequence[str | os.PathLike[str]], **changed: str) -> None:
    """The program with its own library and with this one."""
    expected, theirs = _results(command, **changed)
    capi = [sys.executable, "-m", "orthrus", "capi"]
    made, ours = _results([*capi, "run", "--", *command], **changed)
    assert len(made) == len(expected) > 0
    for (shape, data), (other, values) in zip(made, expected, strict=True):
        assert shape == other
        np.testing.assert_allclose(data, values, rtol=1e-4, atol=1e-5)
    told = subprocess.run([*capi, "--json", "path"], env=dropin.surroundings(**changed), capture_output=True,
                          text=True, timeout=300, check=True)
    library = json.loads(told.stdout)["library"]
    assert library not in theirs
    assert {line for line in ours.splitlines() if "libonnxruntime" in line} == {library}


@needs("onnxruntime-node")
def test_node(tmp_path: Path) -> None:
    _compare(["node", CLIENTS / "node_client.js", DIGITS], NODE_PATH=str(NODE_MODULES))


@needs("sherpa-onnx", "models", "recordings")
def test_sherpa() -> None:
    sound = sorted(RECORDINGS.glob("Front_*.wav"))[0]
    _compare([sys.executable, CLIENTS / "sherpa_client.py", MODELS / "silero_vad" / "model.onnx", sound])
