"""How long `import` takes, engine against engine, in fresh processes that take turns.

    python -m benchmarks.import_time [--modules orthrus,onnxruntime] [--rounds 40]

Measured is the import statement alone, by the process that runs it; numpy, which all of them import, is part
of it, and is measured on its own beside them. Given are the median, the minimum, and the median of the ratios
within a round.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence

PROGRAM = "import time; t = time.perf_counter(); import {0}; print(time.perf_counter() - t)"


def once(module: str) -> float:
    """Milliseconds that a fresh process takes to import `module`. Raises CalledProcessError where it
    cannot."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(module)], check=True, capture_output=True,
                          text=True)
    return 1e3 * float(done.stdout.split()[-1])


def measure(modules: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """`rounds` times of each module; every round starts with another one. A first round warms the file
    cache."""
    times: dict[str, list[float]] = {module: [] for module in modules}
    for i in range(rounds + 1):
        turn = i % len(modules)
        for module in [*modules[turn:], *modules[:turn]]:
            spent = once(module)
            if i:
                times[module].append(spent)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default="orthrus,onnxruntime")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    modules = args.modules.split(",")
    times = measure([*modules, "numpy"], args.rounds)
    base = modules[0]
    for module, spent in times.items():
        ratio = statistics.median(b / a for a, b in zip(times[base], spent, strict=True))
        print(f"{module:14} median {statistics.median(spent):7.1f} ms  min {min(spent):7.1f} ms  "
              f"{ratio:5.2f} times {base}'s")


if __name__ == "__main__":
    main()
