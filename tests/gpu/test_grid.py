"""Every family of GPUs' kernels over sizes, orders in memory, types and values that nobody chose, against the
operators' definitions; two shapes in turn in one session.

By hand, more of it: `python tests/gpu/test_grid.py gfx942 convolution 0 200`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 1)]
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import gpu_families
from emulated_gpu import fenced, nodes, on_gpu
from gpu_grid import FAMILIES, Trial

pytestmark = [pytest.mark.needs("AMD tables", "Triton")]
TURNS = 2


def try_one(family: str, seed: int, target: str) -> bool:
    """Run one case in each of its turns; whether the GPU has the operator. Raises AssertionError."""
    trials = [Trial.of(family, seed, turn) for turn in range(TURNS)]
    for trial in trials:
        trial.case.expected()
    with fenced():
        session = on_gpu(trials[0].model(), target)
        taken = (trials[0].case.op.rpartition("::")[2], "CPUExecutionProvider") not in nodes(session)
        for trial in trials:
            trial.check(session.run(None, trial.feeds()))
            taken = taken and not any(part.numpy for part in session.explain().parts)
    return taken


def main(target: str = "gfx1100", families: str = "", first: str = "0", end: str = "50") -> int:
    """Try seeds; what fails is told, with how many were tried and how many the GPU had."""
    import traceback

    wrong = 0
    for family in families.split(",") if families else FAMILIES:
        tried = taken = 0
        for seed in range(int(first), int(end)):
            try:
                tried += 1
                taken += try_one(family, seed, target)
            except Exception as error:
                wrong += 1
                at = traceback.extract_tb(error.__traceback__)[-1]
                print(f"WRONG {family} {seed}: {type(error).__name__}: {' '.join(str(error).split())[:600]} "
                      f"({at.filename.rpartition('/')[2]}:{at.lineno})", flush=True)
        print(f"{family}: {tried} tried, {taken} taken", flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
