"""`python -m orthrus.tools.onnxruntime_test`: run a model many times on random inputs.

In: a model file. Out: four lines on stdout: the graph's name, the model's version, how many runs, and their
mean time in milliseconds; with --profile a trace file. Arguments and lines are those of the command
`onnxruntime_test`.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..shown import tell

float_dict = {"tensor(float16)": "float16", "tensor(float)": "float32", "tensor(double)": "float64"}
integer_dict = {f"tensor({name})": name for name in
                ("int32", "int8", "uint8", "int16", "uint16", "int64", "uint64")}
_HIGHEST = 1000


def generate_feeds(sess: Any, symbolic_dims: dict[str, Any] | None = None) -> dict[str, Any]:
    """Random inputs for a session: floats from 0 to 1, whole numbers from 0 to what fits of 999, flags. A
    named dimension has the size `symbolic_dims` says, any other open one is 1. Raises ValueError for an input
    that is no tensor of numbers or flags."""
    return {arg.name: _drawn(arg, symbolic_dims or {}) for arg in sess.get_inputs()}


def _drawn(arg: Any, sizes: dict[str, Any]) -> np.ndarray:
    shape = [d if isinstance(d, int) and d > 0 else int(sizes.get(d, 1)) for d in arg.shape]
    if arg.type in float_dict:
        return np.asarray(np.random.random_sample(shape)).astype(float_dict[arg.type])
    if arg.type in integer_dict:
        dtype = np.dtype(integer_dict[arg.type])
        return np.asarray(np.random.randint(0, min(_HIGHEST, np.iinfo(dtype).max), shape)).astype(dtype)
    if arg.type == "tensor(bool)":
        return np.asarray(np.random.randint(2, size=shape)).astype(bool)
    raise ValueError(f"unsupported input type {arg.type} for input {arg.name}")


def run_model(model_path: str | os.PathLike[str], num_iters: int = 1, debug: bool | None = None,
              profile: bool | None = None, symbolic_dims: dict[str, Any] | None = None,
              feeds: dict[str, Any] | None = None, override_initializers: bool = True) -> tuple[int, Any,
                                                                                                Any]:
    """Run a model `num_iters` times and print how long it took. `debug`: wait for a key first. `profile`:
    write a trace. `override_initializers`: feed random values for initializers that are inputs too. Returns
    0, the feeds, and the last outputs, False where there was no run."""
    import orthrus as ort

    if debug:
        tell(f"Attach a debugger to process {os.getpid()} and press a key.")
        sys.stdin.read(1)
    options = ort.SessionOptions()
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = pathlib.Path(model_path).name
    session = ort.InferenceSession(model_path, sess_options=options, providers=ort.get_available_providers())
    meta = session.get_modelmeta()
    feeds = dict(feeds) if feeds else generate_feeds(session, symbolic_dims)
    if override_initializers:
        feeds |= {arg.name: _drawn(arg, {}) for arg in session.get_overridable_initializers()}
    outputs: Any = False
    start = time.perf_counter()
    for _ in range(num_iters):
        outputs = session.run([], feeds)
    spent = time.perf_counter() - start
    tell(f"model: {meta.graph_name}")
    tell(f"version: {meta.version}")
    tell(f"iterations: {num_iters}")
    tell(f"avg latency: {1e3 * spent / max(num_iters, 1)} ms")
    if profile:
        tell(f"trace file written to: {session.end_profiling()}")
    return 0, feeds, outputs


def _sizes(text: str) -> dict[str, int]:
    return {name: int(size) for name, size in (pair.split("=") for pair in text.split(","))}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model or a file is at fault."""
    from ..errors import ALL

    parser = argparse.ArgumentParser(prog="python -m orthrus.tools.onnxruntime_test",
                                     description="Run a model many times on random inputs.")
    parser.add_argument("model_path", help="the model")
    parser.add_argument("num_iters", nargs="?", type=int, default=1000, help="how many runs (default: 1000)")
    parser.add_argument("--debug", action="store_true", help="wait, so that a debugger can be attached")
    parser.add_argument("--profile", action="store_true", help="write a trace of the runs")
    parser.add_argument("--symbolic_dims", type=_sizes, default={}, metavar="batch=1,seqlen=5",
                        help="sizes of named dimensions; others are 1")
    given = parser.parse_args(argv)
    faults: tuple[type[Exception], ...] = (OSError, ValueError, *ALL)
    try:
        return run_model(given.model_path, given.num_iters, given.debug, given.profile,
                         given.symbolic_dims)[0]
    except faults as error:
        tell(f"{given.model_path}: {error}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
