"""Everything there is to learn on a machine with a GPU, by one command that goes on whatever fails.

    python -m benchmarks.first_run OUT [--minutes 9] [--steps driver,sessions,families,networks,guide,cases]

The steps in this order, each in a process of its own with its share of the time: the tests of
tests/gpu/on_device, benchmarks.gpu and benchmarks.guide. OUT gets a log of each step, results of tests as
JUnit's XML and of benchmarks as JSON; what is printed is a line for each step and the last lines of its log.
Nothing has to be installed: `PYTHONPATH=src` is set for the steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = "tests/gpu/on_device/test_{}.py"
LAST = 25
"""Lines of a log that are printed."""

Command = list[str]


def _tests(name: str, out: Path) -> Command:
    return [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "12", "-p", "no:cacheprovider", "-rfE",
            "--tb=short", "--durations=15", f"--junitxml={out / name}.xml", TESTS.format(name)]


def commands(out: Path) -> dict[str, tuple[float, Command]]:
    """Of each step the share of the time that it gets, of what is left, and what it runs."""
    def benchmark(name: str, *more: str) -> Command:
        return [sys.executable, "-m", f"benchmarks.{name}", "--json", str(out / f"{name}.json"), *more]
    return {
        "driver": (0.2, _tests("driver", out)),
        "families": (0.3, _tests("families", out)),
        "sessions": (0.3, _tests("sessions", out)),
        "networks": (0.6, benchmark("gpu", "overhead", "product", "bert_base_128x1", "resnet50_1",
                                    "gpt2_decode", "llama_1b", "resnet50_32", "vit_small", "bert_base_384x8",
                                    "--types", "float16,tf32", "--seconds", "120")),
        "guide": (0.6, benchmark("guide", "--providers", "CUDA,ROCM", "--rounds", "2")),
        "cases": (1.0, _tests("cases", out)),
    }


def run(name: str, command: Command, seconds: float, out: Path) -> str:
    """Do a step: how it ended."""
    log = out / f"{name}.log"
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("w") as file:
        try:
            done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=seconds,
                                  env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"})
            ended = f"ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"was stopped after {seconds:.0f} s"
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([f"== {name} {ended}", *lines[-LAST:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--steps", help="some of them; all if left out")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    steps, end = commands(given.out.absolute()), time.monotonic() + 60 * given.minutes
    asked = given.steps.split(",") if given.steps else list(steps)
    for name in asked:
        share, command = steps[name]
        left = end - time.monotonic()
        seconds = left if name == asked[-1] else share * left
        print(run(name, command, seconds, given.out.absolute()), flush=True)


if __name__ == "__main__":
    main()
