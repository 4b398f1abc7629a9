"""A program's results, and how often it ran a model: `results_of.py PROGRAM FILE`.

In: a program that leaves its results in `results`, arrays or texts by name. Out: FILE, an .npz of them. The
program is run as it is, under whatever provides onnxruntime in this process; only calls are counted.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def main(program: str, file: str) -> None:
    counts = {"runs": 0}

    def counted(method: Any) -> Any:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            counts["runs"] += 1
            return method(*arguments, **options)

        return call

    session = onnxruntime.InferenceSession
    owner = next(each for each in session.__mro__ if "run" in vars(each))
    for name in ("run", "run_with_iobinding"):
        setattr(owner, name, counted(getattr(owner, name)))
    results = runpy.run_path(program, run_name="__main__")["results"]
    said = {"runs": counts["runs"], "by": session.__module__}
    arrays = {name: np.asarray(value) for name, value in results.items()}
    np.savez(file, __said__=np.asarray(json.dumps(said)), **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).with_name("made"))
    main(sys.argv[1], sys.argv[2])
