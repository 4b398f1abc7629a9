"""Matrix products: share of the machine's multiply-add peak, and time against onnxruntime, on one thread.

    taskset -c 0 python -m benchmarks.gemm [--shapes 128x768x768,12x64x64x64,...] [--seconds 0.5]

A shape is [batch x] m x k x n; without batch B is a constant. Both engines and a loop of multiply-adds take
turns in this process; given are the fastest of each. What onnxruntime needs to enter a run is in its time.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from orthrus.codegen.kernels import gemm
from orthrus.codegen.machines.detect import host
from orthrus.codegen.object import library
from orthrus.codegen.write.spec import Spec
from orthrus.profiling.peak import multiply_add_loop

SHAPES = ("1024x1024x1024,128x768x768,128x768x3072,128x3072x768,197x384x1536,197x1536x384,1x768x768,"
          "1x768x3072,4x768x3072,12x64x64x64,12x128x64x128,12x128x128x64,64x64x64,127x333x1001")


def call(spec: Spec, args: list[Any], items: int, scratch: int = 0) -> Callable[[], None]:
    """A kernel with its arguments."""
    machine = host()
    assert machine is not None
    (address,) = library.addresses([spec], machine)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(address)
    cells = np.array([x.ctypes.data if isinstance(x, np.ndarray) else x for x in args], np.int64)
    room = aligned(scratch // 4 + 16)
    at, there = cells.ctypes.data, room.ctypes.data

    def run(kept: Any = (args, cells, room)) -> None:
        entry(at, 0, items, there)
    return run


def aligned(*shape: int) -> np.ndarray:
    size = int(np.prod(shape))
    raw = np.zeros(size + 16, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start:start + size].reshape(shape)


def ours(a: np.ndarray, b: np.ndarray, c: np.ndarray, constant: bool) -> Callable[[], None]:
    machine = host()
    assert machine is not None
    batch, m, k = a.shape
    n = b.shape[2]
    if constant:
        packed = gemm.pack(machine, b)
        b = aligned(*packed.shape)
        b[...] = packed
    made = gemm.plan(machine, m, n, k, batch, "panels" if constant else "rows", k, n)
    return call(made.spec(None, ()), [a, b, c, n, k, k, n, n, 1, m * k, 0, k * n, 0, m * n, 0, *made.cells()],
                made.items, made.scratch)


def theirs(a: np.ndarray, b: np.ndarray, constant: bool) -> onnxruntime.InferenceSession:
    info = helper.make_tensor_value_info
    inputs = {"a": a} if constant else {"a": a, "b": b}
    given = [info(name, TensorProto.FLOAT, x.shape) for name, x in inputs.items()]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "g", given,
                              [info("c", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(b, "b")] if constant else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def fastest(runs: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Seconds per call of each, taking turns."""
    best = [1e9] * len(runs)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for i, run in enumerate(runs):
            for _ in range(3):
                start = time.perf_counter()
                run()
                best[i] = min(best[i], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--seconds", type=float, default=0.5)
    given = parser.parse_args()
    machine = host()
    assert machine is not None
    rng = np.random.default_rng(0)
    loop, work = multiply_add_loop(machine)
    for shape in given.shapes.split(","):
        sizes = [int(x) for x in shape.split("x")]
        constant = len(sizes) == 3
        batch, m, k, n = [1, *sizes] if constant else sizes
        a, b, c = aligned(batch, m, k), aligned(batch, k, n), aligned(batch, m, n)
        a[...] = rng.standard_normal(a.shape, dtype=np.float32)
        b[...] = rng.standard_normal(b.shape, dtype=np.float32)
        if constant:
            b = b[0]
        session = theirs(a[0] if constant else a, b, constant)
        feed = {"a": a[0]} if constant else {"a": a, "b": b}
        mine = ours(a, b[None] if constant else b, c, constant)
        mine()
        wanted = session.run(None, feed)[0]
        assert np.allclose(c.reshape(wanted.shape), wanted, 1e-3, 1e-3 * k ** 0.5)
        other = functools.partial(session.run, None, feed)
        t, o, p = fastest([mine, other, loop], given.seconds)
        rate, peak = 2e-9 * batch * m * n * k / t, 1e-9 * work / p
        print(f"{shape:>16}  {1e6 * t:9.1f} us  {rate:6.1f} GFLOP/s  {100 * rate / peak:4.0f} % of {peak:.0f}"
              f"  {4e-9 * batch * k * n / t:5.1f} GB/s   onnxruntime {1e6 * o:9.1f} us  {o / t:.2f}",
              flush=True)


if __name__ == "__main__":
    main()
