"""Attention kernels beside onnxruntime's on one thread: fused MultiHeadAttention, and MatMul, Softmax,
MatMul.

    taskset -c 0 python -m benchmarks.attention [--seconds 2]

Given are microseconds, the least of many calls that take turns; ratios are theirs to ours. Queries, keys and
values lie as (batch, position, heads * size) for ours and for MultiHeadAttention; the chain gets them by
head, its keys transposed beforehand. The last rows are one query over a cache of 512 keys: with the cache
copied to a longer one on the way, as the operator asks, and without.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from orthrus.codegen.kernels.attention.parts import AttentionForm
from orthrus.codegen.kernels.attention.plan import AttentionPlan, arguments, plan
from orthrus.codegen.machines.detect import host
from orthrus.codegen.object.build import assemble
from orthrus.codegen.object.link import link

SHAPES = ((12, 128, 64), (6, 197, 64), (12, 1500, 64))


def onnx_call(nodes: list[Any], feed: dict[str, np.ndarray], outputs: list[str]) -> Callable[[], Any]:
    """A run of `nodes` by onnxruntime on one thread."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n, x in feed.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17),
                                                    helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feed)


def chain(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Callable[[], Any]:
    """Products and softmax as nodes of their own, over tensors by head."""
    nodes = [helper.make_node("MatMul", ["q", "k"], ["s"]), helper.make_node("Mul", ["s", "c"], ["t"]),
             helper.make_node("Softmax", ["t"], ["p"]), helper.make_node("MatMul", ["p", "v"], ["y"])]
    feed = {"q": q, "k": np.ascontiguousarray(k.swapaxes(2, 3)), "v": v, "c": np.array(0.125, np.float32)}
    return onnx_call(nodes, feed, ["y"])


def native_call(made: AttentionPlan, args: list[Any]) -> Callable[[], Any]:
    """The planned kernel on all its items."""
    machine = host()
    assert machine is not None
    (found,) = link([bytes(assemble(made.spec.text(machine), machine))])  # type: ignore[arg-type]
    enter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                             ctypes.c_void_p)(found["kernel"])
    enter.code = found  # type: ignore[attr-defined]
    cells = np.zeros(len(args), np.int64)
    for i, x in enumerate(args):
        if isinstance(x, np.ndarray):
            cells[i] = x.ctypes.data
        elif isinstance(x, float):
            cells[i:i + 1].view(np.float32)[0] = x
        else:
            cells[i] = x
    room = np.zeros(made.scratch + 64, np.uint8)
    row, at = cells.ctypes.data, room.ctypes.data + -room.ctypes.data % 64
    kept = (args, cells, room, found)
    return lambda: (enter(row, 0, made.items, at), kept)[0]


def ours(heads: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, past: list[np.ndarray]) -> Callable[[],
                                                                                                      Any]:
    """q, k, v (1, positions, heads * size); `past`, if given, keys and values by head."""
    machine = host()
    assert machine is not None
    length, size = q.shape[1], q.shape[2] // heads
    held = past[0].shape[2] if past else 0
    total = held + k.shape[1]
    form = AttentionForm("float32", size, size)
    made = plan(machine, form, 1, heads, heads, length, total, grown=bool(past))
    lying, by_head = (0, size, heads * size), (0, held * size, size)
    cache = None
    if past:
        present = [np.zeros((1, heads, total, size), np.float32) for _ in past]
        cache = ([*past, *present], [by_head, by_head, (0, total * size, size), (0, total * size, size)],
                 held)
    args = arguments(made, [q, k, v, np.zeros_like(q), 0, 0, 0], [lying] * 4 + [(0, 0, 0)], heads, 1, length,
                     total,
                     (0, 1 << 40, 1 << 40), 0, size ** -0.5, 0.0, cache)
    return native_call(made, args)


def measure(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The least microseconds of each, called in turns."""
    found = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - start)
    return {name: 1e6 * t for name, t in found.items()}


def cases() -> dict[str, dict[str, Callable[[], Any]]]:
    rng = np.random.default_rng(0)
    made: dict[str, dict[str, Callable[[], Any]]] = {}

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)
    for heads, length, size in SHAPES:
        flat = [random(1, length, heads * size) for _ in range(3)]
        split = [random(1, heads, length, size) for _ in range(3)]
        fused = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft",
                                 num_heads=heads)
        made[f"{heads} x {length} x {size}"] = {
            "ours": ours(heads, *flat, []), "fused": onnx_call([fused], dict(zip("qkv", flat, strict=True)),
                                                               ["y"]),
            "chain": chain(*split)}
    heads, size, held = 12, 64, 512
    flat = [random(1, 1, heads * size) for _ in range(3)]
    past = [random(1, heads, held, size) for _ in range(2)]
    feed = dict(zip(("q", "k", "v", "pk", "pv"), (*flat, *past), strict=True))
    fused = helper.make_node("MultiHeadAttention", ["q", "k", "v", "", "", "", "pk", "pv"], ["y", "rk", "rv"],
                             domain="com.microsoft", num_heads=heads)
    made["1 query, cache grown"] = {"ours": ours(heads, *flat, past),
                                    "fused": onnx_call([fused], feed, ["y", "rk", "rv"])}
    machine = host()
    assert machine is not None
    one = plan(machine, AttentionForm("float32", size, size), 1, heads, heads, 1, held)
    lying, by_head = (0, size, size), (0, held * size, size)
    args = arguments(one, [flat[0], *past, np.zeros_like(flat[0]), 0, 0, 0],
                     [lying, by_head, by_head, lying, (0, 0, 0)], heads, 1, 1, held, (0, 1 << 40, 1 << 40), 0,
                     size ** -0.5, 0.0)
    fused = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft",
                             num_heads=heads)
    made["1 query, keys in place"] = {
        "ours": native_call(one, args),
        "fused": onnx_call([fused], {"q": flat[0], "k": past[0], "v": past[1]}, ["y"]),
        "chain": chain(random(1, heads, 1, size), *past)}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    args = parser.parse_args()
    for name, calls in cases().items():
        found = measure(calls, args.seconds)
        cells = "  ".join(f"{other} {t:9.1f} ({t / found['ours']:.2f})" for other, t in found.items()
                          if other != "ours")
        print(f"{name:24} ours {found['ours']:9.1f}  {cells}", flush=True)


if __name__ == "__main__":
    main()
