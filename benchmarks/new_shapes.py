"""Shapes that a session has not had: this runtime against onnxruntime, session to session.

    python -m benchmarks.new_shapes --models-dir /tmp/zoo --threads 1,2

bert_base at lengths that are new to a session which has had others: milliseconds of the first run, of the
steady ones, and their ratio. gpt2_decode, whose cache is longer by a row with every token: the median of a
token's milliseconds, and onnxruntime's over ours. The engines take turns, several tokens each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .zoo import build

SEEN = (512, 128, 64, 16)
HEADS, SIZE = 12, 64


def opened(runtime: ModuleType, path: Path, threads: int) -> Any:
    """A session of `runtime`, a module with onnxruntime's API."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def timed(session: Any, feeds: dict[str, np.ndarray]) -> float:
    """Milliseconds of a run."""
    start = time.perf_counter()
    session.run(None, feeds)
    return (time.perf_counter() - start) * 1e3


def tokens(session: Any, length: int) -> dict[str, np.ndarray]:
    """Feeds of bert_base for so many tokens."""
    return {given.name: np.ones((1, length), np.int64) for given in session.get_inputs()}


def first_runs(session: Any, lengths: Sequence[int]) -> list[tuple[float, float]]:
    """Per length milliseconds of the first run and of later ones."""
    for length in SEEN:
        for _ in range(2):
            timed(session, tokens(session, length))
    found = []
    for length in lengths:
        feeds = tokens(session, length)
        first = timed(session, feeds)
        found.append((first, statistics.median(timed(session, feeds) for _ in range(5))))
    return found


def token(session: Any, past: int) -> dict[str, np.ndarray]:
    """Feeds of gpt2_decode for one token behind `past` others."""
    rng, made = np.random.default_rng(past), dict[str, np.ndarray]()
    for given in session.get_inputs():
        if given.name.startswith("past"):
            made[given.name] = rng.standard_normal((1, HEADS, past, SIZE), np.float32)
        else:
            made[given.name] = np.ones((1, past + 1 if "mask" in given.name else 1), np.int64)
    return made


def decoded(sessions: Sequence[Any], past: int, count: int, turns: int) -> list[float]:
    """Per session the median milliseconds of a token, each `count` tokens in a row, in turns."""
    times: list[list[float]] = [[] for _ in sessions]
    for session in sessions:
        for held in (past - 2, past - 1):
            timed(session, token(session, held))
    for turn in range(turns):
        for session, found in zip(sessions, times, strict=True):
            for held in range(past + turn * count, past + (turn + 1) * count):
                found.append(timed(session, token(session, held)))
    return [statistics.median(found) for found in times]


def main() -> None:
    import onnxruntime

    import orthrus

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models-dir", type=Path, required=True,
                        help="where the zoo's models are written and kept")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--lengths", default="20,48,97,100,200,330,500")
    parser.add_argument("--past", type=int, default=128, help="rows of the cache at the first token")
    parser.add_argument("--tokens", type=int, default=20, help="in a row")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    paths = {name: given.models_dir / f"{name}.onnx" for name in ("bert_base", "gpt2_decode")}
    for name, path in paths.items():
        if not path.exists():
            path.write_bytes(build(name).SerializeToString())
    lengths = [int(n) for n in given.lengths.split(",")]
    for threads in map(int, given.threads.split(",")):
        for runtime in (orthrus, onnxruntime):
            rows = first_runs(opened(runtime, paths["bert_base"], threads), lengths)
            print(f"bert_base, {threads} threads, {runtime.__name__}: " + "; ".join(
                f"{n}: {first:.1f} / {steady:.1f} = {first / steady:.2f}"
                for n, (first, steady) in zip(lengths, rows, strict=True)), flush=True)
        sessions = [opened(runtime, paths["gpt2_decode"], threads) for runtime in (orthrus, onnxruntime)]
        ours, theirs = decoded(sessions, given.past, given.tokens, given.turns)
        print(f"gpt2_decode, {threads} threads: onnxruntime {theirs:.1f} ms, orthrus {ours:.1f} ms a token, "
              f"ratio {theirs / ours:.2f}", flush=True)


if __name__ == "__main__":
    main()
