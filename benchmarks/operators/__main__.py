"""Every operator, a model of one node each, against onnxruntime on one thread in one process.

    taskset -c 0 python -m benchmarks.operators [--only REGEX] [--seconds 0.1] [--out FILE] [--list]

The engines take turns; given are the fastest run of each in microseconds, the ratio (above 1: faster than
onnxruntime), the largest difference of the results and what runs by its definition in numpy. What
onnxruntime has no kernel for is measured in an older version, or left out. At the end: how many cases lie
below which ratio. FILE gets a line of JSON for each case.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict

import numpy as np

from . import classical, elementwise, few, movement, odd, products
from .measuring import Case, measured
from .quantized import quantized

OLDER = 16
"""The operator set of cases that onnxruntime has no newer kernel for."""

FAMILIES: tuple[Callable[[], Iterator[tuple[str, Case]]], ...] = (
    elementwise.unary,
    elementwise.binary,
    elementwise.casts,
    elementwise.reductions,
    elementwise.norms,
    products.products,
    products.convolutions,
    products.recurrent,
    products.attention,
    movement.transposes,
    movement.views,
    movement.gathers,
    movement.images,
    classical.classical,
    classical.trees,
    classical.text,
    classical.control,
    classical.odd,
    few.rows,
    few.channels,
    few.matrices,
    odd.convolutions,
    odd.folds,
    odd.movement,
    odd.best,
    odd.transposed,
    odd.runs,
    odd.windows,
    odd.single,
    quantized,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose names a regular expression finds")
    parser.add_argument("--seconds", type=float, default=0.1, help="of measuring, for each case")
    parser.add_argument("--out", help="a file for lines of JSON")
    parser.add_argument("--list", action="store_true", help="names only")
    asked = parser.parse_args()
    ratios, absent, failed = [], 0, []
    for name, case in (each for family in FAMILIES for each in family()):
        if not re.search(asked.only, name):
            continue
        if asked.list:
            print(name)
            continue
        try:
            seen = measured(case, asked.seconds) or measured(case, asked.seconds, opset=OLDER)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
            continue
        if seen is None:
            absent += 1
            continue
        ratios.append(seen.ratio)
        print(
            f"{name:52} {1e6 * seen.theirs:10.1f} {1e6 * seen.ours:10.1f} {seen.ratio:7.2f}  "
            f"{seen.apart:.2g}  {seen.how}",
            flush=True,
        )
        if asked.out:
            with open(asked.out, "a") as out:
                out.write(json.dumps({"case": name, "ratio": seen.ratio} | asdict(seen)) + "\n")
    if ratios:
        _summary(np.array(ratios))
        print(f"{absent} that onnxruntime has no kernel for")
    print("\n".join(failed))


def _summary(ratios: np.ndarray) -> None:
    below = ", ".join(
        f"{(ratios < limit).sum()} below {limit} ({(ratios < limit).mean():.1%})" for limit in (0.5, 0.9, 1.0)
    )
    print(f"{len(ratios)} cases: {below}; geometric mean {np.exp(np.log(ratios).mean()):.2f}")


if __name__ == "__main__":
    main()
