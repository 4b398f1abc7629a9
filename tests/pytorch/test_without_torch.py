"""Nothing imports PyTorch before it is asked for, and where it is missing, that is said with the cure."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None
import orthrus
assert "from_torch" not in orthrus.__all__
for ask in (lambda: orthrus.from_torch, lambda: orthrus.torch):
    try:
        ask()
    except orthrus.capi.onnxruntime_pybind11_state.NotFound as error:
        assert "orthrus-runtime[torch]" in error.cure, error
    else:
        raise AssertionError("no error")
try:
    import orthrus.tools.pytorch_export_contrib_ops
except ModuleNotFoundError as error:
    text = "This module is only useful in combination with PyTorch. "
    assert str(error).startswith(text) and "orthrus-runtime[torch]" in str(error), error
else:
    raise AssertionError("no error")
"""


def test_a_missing_torch_is_said() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
