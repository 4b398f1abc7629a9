"""Weights of 2, 4 and 8 bits in blocks: this runtime against onnxruntime, session to session, on one thread.

    taskset -c 0 python -m benchmarks.few_bits [--only decoder] [--seconds 1] [--threads 1]

The engines and a loop that does nothing but read memory take turns; given are the least microseconds of all
runs, the ratio (above 1: faster than onnxruntime), and the rate at which weights and past keys and values
were read as a share of that loop's (above 1 where a cache holds them). `error` is the largest difference from
float64, ours and theirs, over the largest result; accuracy level 4 rounds rows of the first factor to eight
bits in both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper, numpy_helper

from orthrus.codegen.machines.detect import host
from orthrus.codegen.runtime.call_kernel import aligned
from orthrus.profiling.peak import STREAM, call, read

MS = "com.microsoft"
BLOCK = 32
_CHUNK = 1 << 20


@dataclass
class Case:
    """A model, what is fed, the bytes that a run reads, and the result in float64 where known."""

    name: str
    model: bytes
    feeds: dict[str, np.ndarray]
    read: int
    wanted: np.ndarray | None = None


def bytes_of(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as bytes, the first in the lowest bits."""
    parts = codes.reshape(len(codes), -1, 8 // bits) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(parts, axis=2)


def model(nodes: list[Any], fixed: dict[str, np.ndarray], feeds: dict[str, np.ndarray],
          outputs: tuple[str, ...] = ("y",)) -> bytes:
    def kind(array: np.ndarray) -> int:
        return helper.np_dtype_to_tensor_dtype(array.dtype)
    first = next(iter(feeds.values()))
    floats = kind(first) if first.dtype.kind != "i" else kind(fixed["scales"])
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, kind(a), a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info(n, floats, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in fixed.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def drawn(rng: np.random.Generator, n: int, k: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes (n, k) and scales (n, blocks)."""
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    return codes, rng.uniform(0.001, 0.002, (n, k // BLOCK)).astype(np.float32)


def size(n: int, k: int, bits: int) -> int:
    return n * k * bits // 8 + 4 * n * k // BLOCK


def product(rows: int, n: int, k: int, bits: int, level: int, dtype: str = "float32") -> Case:
    """MatMulNBits."""
    rng = np.random.default_rng(0)
    codes, scales = drawn(rng, n, k, bits)
    fixed = {"b": bytes_of(codes, bits).reshape(n, k // BLOCK, -1), "scales": scales.astype(dtype)}
    node = helper.make_node("MatMulNBits", ["a", "b", "scales"], ["y"], domain=MS, K=k, N=n, bits=bits,
                            block_size=BLOCK, accuracy_level=level)
    feeds = {"a": rng.standard_normal((rows, k)).astype(dtype)}
    matrix = (codes - float(1 << (bits - 1))) * np.repeat(fixed["scales"].astype(np.float64), BLOCK, 1)
    wanted = feeds["a"].astype(np.float64) @ matrix.T
    return Case(f"MatMulNBits {rows} x {k} x {n}, {bits} bits, level {level}, {dtype}",
                model([node], fixed, feeds), feeds, size(n, k, bits), wanted)


def dequantized(rows: int, n: int, k: int) -> Case:
    """DequantizeLinear of uint4 by blocks, then MatMul."""
    rng = np.random.default_rng(0)
    codes, scales = drawn(rng, n, k, 4)
    zeros = rng.integers(0, 16, scales.shape, dtype=np.uint8)
    matrix = (codes - np.repeat(zeros.astype(np.float64), BLOCK, 1)) * np.repeat(scales, BLOCK, 1)
    fixed = {"x": codes.T.astype(ml_dtypes.uint4), "scales": np.ascontiguousarray(scales.T),
             "zeros": zeros.T.astype(ml_dtypes.uint4)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "scales", "zeros"], ["w"], axis=0, block_size=BLOCK),
             helper.make_node("MatMul", ["a", "w"], ["y"])]
    feeds = {"a": rng.standard_normal((rows, k)).astype(np.float32)}
    return Case(f"DequantizeLinear + MatMul {rows} x {k} x {n}, 4 bits", model(nodes, fixed, feeds), feeds,
                size(n, k, 4) + n * k // BLOCK // 2, feeds["a"] @ matrix.T)


def gathered(rows: int, table: int, k: int) -> Case:
    """GatherBlockQuantized."""
    rng = np.random.default_rng(0)
    codes, scales = drawn(rng, table, k, 4)
    fixed = {"x": bytes_of(codes, 4), "scales": scales}
    node = helper.make_node("GatherBlockQuantized", ["x", "i", "scales"], ["y"], domain=MS, bits=4,
                            block_size=BLOCK, gather_axis=0, quantize_axis=1)
    feeds = {"i": rng.integers(0, table, (1, rows))}
    matrix = (codes - 8.0) * np.repeat(scales, BLOCK, 1)
    return Case(f"GatherBlockQuantized {rows} of {table} x {k}, 4 bits", model([node], fixed, feeds), feeds,
                size(rows, k, 4), matrix[feeds["i"]])


def floats(rows: int, n: int, k: int) -> Case:
    """MatMulBnb4 with normal floats."""
    rng = np.random.default_rng(0)
    fixed = {"b": rng.integers(0, 256, n * k // 2, dtype=np.uint8),
             "absmax": rng.uniform(0.01, 0.02, n * k // 64).astype(np.float32)}
    node = helper.make_node("MatMulBnb4", ["a", "b", "absmax"], ["y"], domain=MS, K=k, N=n, block_size=64,
                            quant_type=1)
    feeds = {"a": rng.standard_normal((rows, k)).astype(np.float32)}
    return Case(f"MatMulBnb4 {rows} x {k} x {n}", model([node], fixed, feeds), feeds,
                n * k // 2 + n * k // 16)


def decoder(rows: int, level: int, past: int, layers: int = 2, wide: int = 2048, inner: int = 5632) -> Case:
    """Layers of a decoder with 32 heads of queries and 8 of keys and values, after `past` tokens."""
    rng = np.random.default_rng(0)
    heads, kept, total = 32, 8, 0
    each = wide // heads
    fixed = {"norm": np.ones(wide, np.float32), "lengths": np.full((1, 1), past + rows - 1, np.int32),
             "total": np.array(past + rows, np.int32)}
    feeds = {"x": rng.standard_normal((1, rows, wide)).astype(np.float32)}
    nodes: list[Any] = []

    def linear(name: str, source: str, n: int, k: int) -> str:
        nonlocal total
        codes, scales = drawn(rng, n, k, 4)
        fixed[f"{name}.b"], fixed[f"{name}.s"] = bytes_of(codes, 4).reshape(n, k // BLOCK, -1), scales
        nodes.append(helper.make_node("MatMulNBits", [source, f"{name}.b", f"{name}.s"], [name], domain=MS,
                                      K=k, N=n, bits=4, block_size=BLOCK, accuracy_level=level))
        total += size(n, k, 4)
        return name

    def op(kind: str, inputs: list[str], name: str, domain: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name
    x, outputs = "x", []
    for i in range(layers):
        normal = op("SimplifiedLayerNormalization", [x, "norm"], f"{i}.norm")
        q, k, v = (linear(f"{i}.{name}", normal, n, wide) for name, n in (
            ("q", wide), ("k", kept * each), ("v", kept * each)))
        for name in (f"{i}.pk", f"{i}.pv"):
            feeds[name] = rng.standard_normal((1, kept, past, each)).astype(np.float32)
            total += feeds[name].nbytes
        present = [f"{i}.nk", f"{i}.nv"]
        nodes.append(helper.make_node(
            "GroupQueryAttention", [q, k, v, f"{i}.pk", f"{i}.pv", "lengths", "total"], [f"{i}.a", *present],
            domain=MS, num_heads=heads, kv_num_heads=kept))
        outputs += present
        x = op("Add", [x, linear(f"{i}.o", f"{i}.a", wide, wide)], f"{i}.x")
        normal = op("SimplifiedLayerNormalization", [x, "norm"], f"{i}.norm2")
        gate, up = (linear(f"{i}.{name}", normal, inner, wide) for name in ("gate", "up"))
        open_ = op("Mul", [gate, op("Sigmoid", [gate], f"{i}.sigmoid")], f"{i}.silu")
        down = linear(f"{i}.down", op("Mul", [open_, up], f"{i}.mul"), wide, inner)
        x = op("Add", [x, down], f"{i}.y" if i < layers - 1 else "y")
    return Case(f"decoder, {layers} layers {wide} wide, {rows} tokens after {past}, level {level}",
                model(nodes, fixed, feeds, ("y", *outputs)), feeds, total)


def cases() -> Iterator[Callable[[], Case]]:
    for rows in (1, 8, 128):
        for bits in (4, 2, 8):
            for level in (0, 4):
                yield lambda r=rows, b=bits, v=level: product(r, 2048, 2048, b, v)  # type: ignore[misc]
    for level in (0, 4):
        yield lambda v=level: product(1, 4096, 4096, 4, v)  # type: ignore[misc]
        yield lambda v=level: product(1, 64, 64, 4, v)  # type: ignore[misc]
        yield lambda v=level: product(1, 2048, 2048, 4, v, "float16")  # type: ignore[misc]
    for rows in (1, 128):
        yield lambda r=rows: dequantized(r, 2048, 2048)  # type: ignore[misc]
        yield lambda r=rows: gathered(r, 32000, 2048)  # type: ignore[misc]
        yield lambda r=rows: floats(r, 2048, 2048)  # type: ignore[misc]
        for level in (0, 4):
            for past in (16, 512):
                yield lambda r=rows, v=level, p=past: decoder(r, v, p)  # type: ignore[misc]


def opened(runtime: Any, case: Case, threads: int) -> Callable[[], np.ndarray]:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(case.model, options, providers=["CPUExecutionProvider"])
    return lambda: np.asarray(session.run(None, case.feeds)[0])


def reading(threads: int) -> Callable[[], None]:
    """A loop that reads STREAM bytes of memory."""
    machine = host()
    assert machine is not None
    items = STREAM // _CHUNK
    data, at = np.ones(STREAM // 4, np.float32), aligned((items * machine.lanes(),))
    return call(machine, read(), [data, at, _CHUNK // 4], items, threads)


def fastest(engines: list[Callable[[], Any]], seconds: float) -> list[float]:
    """The least microseconds of each, in turns."""
    best = [np.inf] * len(engines)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for i, run in enumerate(engines):
            for _ in range(3):
                start = time.perf_counter()
                run()
                best[i] = min(best[i], (time.perf_counter() - start) * 1e6)
    return best


def main() -> None:
    import onnxruntime

    import orthrus

    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="what the name of a case has to contain")
    parser.add_argument("--seconds", type=float, default=1, help="of timing per line")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    loop = reading(given.threads)
    for make in cases():
        case = make()
        if given.only not in case.name:
            continue
        engines = [opened(runtime, case, given.threads) for runtime in (orthrus, onnxruntime)]
        results = [run() for run in engines]
        wanted = results[1] if case.wanted is None else case.wanted
        errors = "/".join(f"{np.abs(y - wanted).max() / np.abs(wanted).max():.0e}" for y in results)
        mine, theirs, alone = fastest([*engines, loop], given.seconds)
        rate, bandwidth = case.read / mine, STREAM / alone
        print(f"{case.name:>55}: {mine:9.1f} us, onnxruntime {theirs:9.1f}, ratio {theirs / mine:5.2f}, "
              f"{rate / 1e3:5.1f} GB/s ({rate / bandwidth:4.2f} of {bandwidth / 1e3:.0f}), error {errors}",
              flush=True)


if __name__ == "__main__":
    main()
