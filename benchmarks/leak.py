"""Sessions made, run and dropped by the thousand: does memory stay flat?

    python -m benchmarks.leak [--engine orthrus] [--sessions 1000]

Prints resident memory as it goes, and ends with exit code 1 where the second half grew by more than 4 KiB per
session.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from pathlib import Path

import numpy as np

from .call_overhead import chain

ALLOWED = 4096
"""Bytes per session that the allocator's own noise is granted."""


def resident() -> int:
    """Bytes of resident memory, from /proc."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sweep(engine: str, sessions: int, show: bool = True) -> float:
    """Bytes per session by which memory grew in the second half of `sessions` sessions."""
    runtime = importlib.import_module(engine)
    model, feed = chain(8).SerializeToString(), {"x": np.ones((1, 4), np.float32)}
    middle = 0
    for i in range(sessions):
        session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
        for _ in range(3):
            session.run(None, feed)
        if (i + 1) % max(1, sessions // 10) == 0:
            del session
            gc.collect()
            if show:
                print(f"{i + 1:6} sessions  {resident() / 1024:10.0f} KiB", flush=True)
            if i + 1 <= sessions // 2:
                middle = resident()
    return (resident() - middle) / max(1, sessions - sessions // 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="orthrus")
    parser.add_argument("--sessions", type=int, default=1000)
    args = parser.parse_args()
    grown = sweep(args.engine, args.sessions)
    print(f"{grown:.0f} bytes per session over the second half")
    sys.exit(grown > ALLOWED)


if __name__ == "__main__":
    main()
