"""Every family of GPUs' kernels over sizes, orders in memory, types and values that nobody chose, against the
operators' definitions; two shapes in turn in one session.

By hand, more of it: `python tests/gpu/test_grid.py gfx942 convolution 0 200`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 1)]
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from emulated_gpu import fenced, nodes, on_gpu
from gpu_families import FAMILIES
from gpu_grid import Case, Trial

pytestmark = [pytest.mark.needs("AMD tables", "Triton")]
TURNS = 2
SEEDS = (0, 1)
LONG = ("convolution", "transposed_convolution", "convolution_of_bytes")
"""What takes the interpreter longer than compiling does."""


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
            hosted = {why for part in session.explain().parts for why in part.numpy.values()}
            assert not any("does not compile" in why for why in hosted), (str(trial.case), hosted)
            taken = taken and not hosted
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_some(family: str) -> None:
    """As CUDA's kernels, by the interpreter; as AMD's, where that is shorter."""
    taken = [try_one(family, seed, "gfx1100" if family in LONG else "interpreted") for seed in SEEDS]
    assert any(taken), "the CPU computed all of it"


@pytest.mark.thorough
@pytest.mark.parametrize("target", ("gfx1100", "gfx942"))
@pytest.mark.parametrize("family", FAMILIES)
def test_many(family: str, target: str) -> None:
    """As machine code."""
    for seed in range(100):
        try_one(family, seed, target)


def test_what_is_wrong_is_seen() -> None:
    """A result that is off by little, of another type or another shape is told."""
    factors = [np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)]
    trial = Trial(Case("MatMul", list(factors)), {}, None)
    (right,) = trial.results()
    trial.check([right])
    for wrong in (right * np.float32(1.001), right.astype(np.float64), right[None], right * np.nan):
        with pytest.raises(AssertionError, match="MatMul"):
            trial.check([wrong])


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
