"""PyTorch modules by torch itself, by its compiler and by this package, in one process and one thread.

    python -m benchmarks.torch_compile [module …] [--scale 1]

Microseconds of a warm call, the best of many taken in turns, in inference mode: eager, `torch.compile` with
inductor and with this backend, and `orthrus.from_torch`. The modules are those of the tests. Needs torch,
transformers and a C++ compiler.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import torch_modules

import orthrus
import orthrus.torch

KINDS = ("eager", "inductor", "orthrus", "from_torch")
SECONDS = 4


def prepared(kind: str, net: Any, arguments: Any, named: Any) -> Callable[[], Any]:
    """A call of a module that was compiled and warmed up."""
    torch._dynamo.reset()
    call = net if kind == "eager" else orthrus.from_torch(net, arguments, named) if kind == "from_torch" \
        else torch.compile(net, backend=kind)
    for _ in range(3):
        call(*arguments, **named)
    return lambda: call(*arguments, **named)


def best(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of each, the least of what was measured while they took turns."""
    found = dict.fromkeys(calls, math.inf)
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for kind, call in calls.items():
            for _ in range(5):
                start = time.perf_counter()
                call()
                found[kind] = min(found[kind], 1e6 * (time.perf_counter() - start))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(torch_modules.MODULES))
    parser.add_argument("--scale", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.allow_rnn = True
    logging.getLogger("torch").setLevel(logging.ERROR)
    print(f"| module | {' | '.join(KINDS)} |\n|---|{'---|' * len(KINDS)}")
    for name in given.names or torch_modules.MODULES:
        calls = {}
        made = {kind: torch_modules.module(name, given.scale) for kind in KINDS}
        with torch.inference_mode():
            for kind in KINDS:
                try:
                    calls[kind] = prepared(kind, *made[kind])
                except Exception as error:
                    print(f"{name}, {kind}: {str(error).splitlines()[0]}", file=sys.stderr)
            times = best(calls)
        row = (f"{times[kind]:.1f}" if kind in times else "" for kind in KINDS)
        print(f"| {name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
