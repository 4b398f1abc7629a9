"""Row kernels as NVIDIA's assembler gets them: compiled for sm_80 and sm_90, and how much of it lies in
registers."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.epilogue import Closing, Reading, Walk
from orthrus.codegen.triton.kernels.reductions import arg_rows, reduce_rows
from orthrus.codegen.triton.kernels.rows import Tile, norm_rows, softmax_rows
from orthrus.codegen.triton.kernels.scans import running_rows
from orthrus.codegen.triton.targets import TARGETS
from orthrus.codegen.triton.write import SIZE, Spec
from orthrus.codegen.write.expr import Expr

pytestmark = [pytest.mark.needs("Triton"), pytest.mark.slow]

X = Expr.leaf(0, "float16").cast("float32")
OUT = Expr.leaf(0, "float32").cast("float16")
ROWS = Walk((("s",), ("1",)))
READING, CLOSING = Reading(ROWS, X, ("float16",)), Closing(ROWS, OUT, ())
FOLDED = Closing(Walk((("1",),)), OUT, ())
WHOLE, LONG = Tile(1, 4096, True), Tile(1, 2048, False)
SPECS = [softmax_rows(reading=READING, closing=CLOSING, tile=t, log=False) for t in (WHOLE, LONG)]
SPECS += [norm_rows(reading=READING, closing=CLOSING, tile=t, kind="layer") for t in (WHOLE, LONG)]
SPECS += [reduce_rows(reading=READING, closing=FOLDED, tile=Tile(1, 1024, False), kind="sum", pieces=False),
          arg_rows(reading=READING, closing=Closing(Walk((("1",),)), Expr.leaf(0, "int64"), ()),
                   tile=Tile(1, 1024, False), least=False, last=False),
          running_rows(reading=READING, closing=CLOSING, tile=Tile(1, 1024, False), kind="sum",
                       exclusive=False, reverse=False)]


@pytest.mark.parametrize("target", ("sm_80", "sm_90"))
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.template)
def test_wide_reads_and_no_spills(spec: Spec, target: str, tmp_path: Path) -> None:
    """Four halves or more by one instruction, and no local memory."""
    hints = tuple("" if kind == "number" else "16" if kind == SIZE or kind.startswith("*") else ""
                  for _, kind in spec.written(TARGETS[target]).arguments)
    text = compiling.text_of(spec, TARGETS[target], hints, "ptx")
    wide = re.findall(r"ld\.global\S*\.v(\d)\.b(\d+)", text)
    assert any(int(n) * int(bits) >= 64 for n, bits in wide), wide
    assert ".local" not in text
    found = importlib.util.find_spec("triton")
    assert found is not None and found.origin is not None
    reader = Path(found.origin).parent / "backends/nvidia/bin/cuobjdump"
    (tmp_path / "kernel.cubin").write_bytes(compiling.code(spec, TARGETS[target], hints).data)
    used = subprocess.run([reader, "-res-usage", tmp_path / "kernel.cubin"], capture_output=True, text=True,
                          check=True).stdout
    assert "STACK:0" in used and "LOCAL:0" in used, used
