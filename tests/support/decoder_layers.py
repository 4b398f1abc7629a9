"""Layers of decoders for one token, as onnxruntime's tools leave them: weights of 4 bits under queries that
share keys, and one of half precision under com.microsoft's Attention.

In: sizes. Out: a model whose inputs are a token's numbers, how many keys there are, and caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_models import node
from onnx import ModelProto, TensorProto, helper, numpy_helper

MS = "com.microsoft::"


class Layers:
    """A model while it is put together: nodes, inputs, results and constants of one type of numbers."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.rng, self.dtype = np.random.default_rng(seed), np.dtype(dtype)
        self.kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.nodes: list[Any] = []
        self.given: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.held: dict[str, np.ndarray] = {}
        self.results: list[str] = []

    def add(self, op: str, inputs: str, outputs: str, **attrs: Any) -> str:
        """A node; its first result."""
        self.nodes.append(node(op, inputs, outputs, **attrs))
        return outputs.split()[0]

    def numbers(self, name: str, *shape: int, scale: float = 1.0) -> str:
        """A constant of random numbers."""
        self.held[name] = (self.rng.standard_normal(shape) * scale).astype(self.dtype)
        return name

    def input(self, name: str, *shape: int) -> str:
        self.given[name] = self.kind, shape
        return name

    def few_bits(self, x: str, n: int, k: int, name: str, block: int) -> str:
        """A product by n times k weights of 4 bits."""
        self.held[f"{name}.b"] = self.rng.integers(0, 256, (n, -(-k // block), block // 2), dtype=np.uint8)
        self.held[f"{name}.s"] = (self.rng.random((n, -(-k // block))) / (8 * k ** 0.5)).astype(self.dtype)
        return self.add(MS + "MatMulNBits", f"{x} {name}.b {name}.s", name, K=k, N=n, bits=4,
                        block_size=block)

    def dense(self, x: str, n: int, k: int, name: str) -> str:
        """A product with a bias."""
        self.numbers(f"{name}.w", k, n, scale=k ** -0.5)
        self.numbers(f"{name}.b", n)
        return self.add("Add", f"{self.add('MatMul', f'{x} {name}.w', f'{name}.m')} {name}.b", name)

    def model(self) -> ModelProto:
        def info(name: str, kind: int, shape: tuple[int, ...] | None) -> Any:
            return helper.make_tensor_value_info(name, kind, shape)
        graph = helper.make_graph(
            self.nodes, "g", [info(name, *given) for name, given in self.given.items()],
            [info(name, self.kind, None) for name in self.results],
            [numpy_helper.from_array(array, name) for name, array in self.held.items()])
        return helper.make_model(graph, ir_version=10, opset_imports=[
            helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)])

    def feeds(self, keys: int) -> dict[str, np.ndarray]:
        """Random inputs, where caches have so many rows before the token's."""
        return {name: np.array([keys], np.int32) if kind == TensorProto.INT32 else
                self.rng.standard_normal(shape).astype(self.dtype)
                for name, (kind, shape) in self.given.items()}


def llama(layers: int = 1, hidden: int = 2048, heads: int = 32, shared: int = 4, size: int = 64,
          inner: int = 5632, dtype: str = "float16", cache: int = 512, block: int = 32, packed: bool = False,
          seed: int = 0, dense: bool = False) -> Layers:
    """RMS norms, rotary positions, queries that share keys, a gate; `packed`: queries, keys and values are
    one product; `dense`: weights are numbers, not codes."""
    m = Layers(dtype, seed)

    def product(x: str, n: int, k: int, name: str) -> str:
        if not dense:
            return m.few_bits(x, n, k, name, block)
        return m.add("MatMul", f"{x} {m.numbers(f'{name}.w', k, n, scale=k ** -0.5)}", name)
    x, ends = m.input("x", 1, 1, hidden), "ends"
    m.given[ends] = TensorProto.INT32, (1,)
    m.numbers("cos", cache, size // 2)
    m.numbers("sin", cache, size // 2)
    m.held["total"] = np.array(cache, np.int32)
    normal = m.add("SimplifiedLayerNormalization", f"x {m.numbers('g', hidden)}", "n", epsilon=1e-5, axis=-1)
    for i in range(layers):
        p = f"l{i}."
        if packed:
            parts = [product(normal, (heads + 2 * shared) * size, hidden, f"{p}qkv"), "-", "-"]
        else:
            parts = [product(normal, n * size, hidden, p + name)
                     for name, n in zip("qkv", (heads, shared, shared), strict=True)]
        past = [m.input(f"{p}past_{name}", 1, shared, cache, size) for name in "kv"]
        m.results += [f"{p}new_k", f"{p}new_v"]
        mixed = m.add(MS + "GroupQueryAttention", f"{' '.join(parts)} {' '.join(past)} {ends} total cos sin",
                      f"{p}a {p}new_k {p}new_v", num_heads=heads, kv_num_heads=shared, do_rotary=1)
        out = product(mixed, hidden, heads * size, f"{p}o")
        m.add(MS + "SkipSimplifiedLayerNormalization", f"{out} {x} {m.numbers(f'{p}g1', hidden)}",
              f"{p}n1 - - {p}h1", epsilon=1e-5)
        gate, up = (product(f"{p}n1", inner, hidden, p + name) for name in ("gate", "up"))
        swish = m.add("Mul", f"{gate} {m.add('Sigmoid', gate, f'{p}sigmoid')}", f"{p}swish")
        down = product(m.add("Mul", f"{swish} {up}", f"{p}act"), hidden, inner, f"{p}down")
        m.add(MS + "SkipSimplifiedLayerNormalization", f"{down} {p}h1 {m.numbers(f'{p}g2', hidden)}",
              f"{p}n2 - - {p}h2", epsilon=1e-5)
        x, normal = f"{p}h2", f"{p}n2"
    m.results += [normal, x]
    return m


def gpt2(layers: int = 1, hidden: int = 768, heads: int = 12, dtype: str = "float16", past: int = 127,
         seed: int = 0) -> Layers:
    """Layer norms, com.microsoft's Attention over a cache that grows, a Gelu between two products."""
    m, size = Layers(dtype, seed), hidden // heads
    x = m.input("x", 1, 1, hidden)
    for i in range(layers):
        p = f"l{i}."
        affine = [m.numbers(f"{p}{name}", hidden) for name in ("g1", "b1", "g2", "b2")]
        normal = m.add("LayerNormalization", f"{x} {affine[0]} {affine[1]}", f"{p}n1", epsilon=1e-5)
        m.numbers(f"{p}w", hidden, 3 * hidden, scale=hidden ** -0.5)
        m.numbers(f"{p}wb", 3 * hidden)
        m.input(f"{p}past", 2, 1, heads, past, size)
        m.results.append(f"{p}present")
        mixed = m.add(MS + "Attention", f"{normal} {p}w {p}wb - {p}past", f"{p}a {p}present",
                      num_heads=heads, unidirectional=1)
        x = m.add("Add", f"{m.dense(mixed, hidden, hidden, f'{p}o')} {x}", f"{p}h1")
        normal = m.add("LayerNormalization", f"{x} {affine[2]} {affine[3]}", f"{p}n2", epsilon=1e-5)
        wide = m.add("Gelu", m.dense(normal, 4 * hidden, hidden, f"{p}u"), f"{p}gelu", approximate="tanh")
        x = m.add("Add", f"{m.dense(wide, hidden, 4 * hidden, f'{p}d')} {x}", f"{p}h2")
    m.results.append(x)
    return m


def bert(layers: int = 1, hidden: int = 768, heads: int = 12, dtype: str = "float16", length: int = 1,
         seed: int = 0) -> Layers:
    """An encoder's: norms behind the sums, MultiHeadAttention."""
    m = Layers(dtype, seed)
    x = m.input("x", 1, length, hidden)
    for i in range(layers):
        p = f"l{i}."
        parts = [m.dense(x, hidden, hidden, p + name) for name in "qkv"]
        mixed = m.add(MS + "MultiHeadAttention", " ".join(parts), f"{p}a", num_heads=heads)
        for turn, inner in ((1, 0), (2, 4 * hidden)):
            if inner:
                mixed = m.add("Gelu", m.dense(x, inner, hidden, f"{p}u"), f"{p}gelu")
            made = m.dense(mixed, hidden, inner or hidden, f"{p}o{turn}")
            total = m.add("Add", f"{made} {x}", f"{p}h{turn}")
            affine = [m.numbers(f"{p}{name}{turn}", hidden) for name in "gb"]
            x = m.add("LayerNormalization", f"{total} {' '.join(affine)}", f"{p}n{turn}", epsilon=1e-5)
    m.results.append(x)
    return m
