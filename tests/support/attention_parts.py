"""Attention as exporters write it, in parts: random forms, masks and caches, with infinities and NaN.

In: a seed. Out: a model, its feeds, and the type of its numbers. Finite numbers are small, so that no score
overflows a half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper, numpy_helper

TYPES = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 2e-6, np.dtype(np.float16): 2e-2}
"""Element types and tolerances."""
SPECIAL = (np.nan, np.inf, -np.inf, 0.0)


class Parts:
    """One model in the making."""

    def __init__(self, seed: int, types: tuple[Any, ...]) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype(self.one(*types))
        self.nodes: list[Any] = []
        self.feeds: dict[str, np.ndarray] = {}
        self.constants: list[Any] = []

    def one(self, *options: Any) -> Any:
        return options[self.rng.integers(len(options))]

    def chance(self, of: float) -> bool:
        return bool(self.rng.random() < of)

    def __call__(self, kind: str, *inputs: str, **attrs: Any) -> str:
        made = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [made], **attrs))
        return made

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype or self.dtype), name))
        return name

    def feed(self, array: np.ndarray, constant: float = 0.0) -> str:
        if self.chance(constant):
            return self.constant(array, array.dtype)
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return name

    def numbers(self, *shape: int) -> np.ndarray:
        """Mostly finite."""
        made = self.rng.standard_normal(shape).astype(self.dtype)
        if made.size and self.chance(0.3):
            places = self.rng.integers(made.size, size=self.one(1, 1, 2))
            made.reshape(-1)[places] = self.one(*SPECIAL)
        if made.size and self.chance(0.1):
            made[self.rng.integers(len(made)), ..., 0] = self.one(*SPECIAL)
        return made

    def masked(self, scores: str, shape: tuple[int, ...]) -> str:
        """Scores with a mask that may close whole rows or all but one key."""
        lead = [n if self.chance(0.5) else 1 for n in shape[:-1]]
        kind = self.one("add", "add", "where", "where not", "causal")
        closed = self.rng.random((*lead, shape[-1])) < self.one(0.2, 0.5, 0.9)
        if kind == "causal":
            closed = np.broadcast_to(np.triu(np.ones(shape[-2:], bool), self.one(0, 1)), shape).copy()
        if self.chance(0.4):
            closed[..., self.rng.integers(closed.shape[-2]), :] = True
        if self.chance(0.3):
            closed[..., self.rng.integers(shape[-1])] = False
        low = float(np.finfo(self.dtype).min)
        least = self.one(-np.inf, -np.inf, low, -1e4, -1.0)
        if kind in ("where", "where not"):
            test, fill = self.feed(closed if kind == "where not" else ~closed, 0.2), self.constant(least)
            return self("Where", test, *((fill, scores) if kind == "where not" else (scores, fill)))
        given = np.where(closed, least, self.one(0.0, 0.5)).astype(self.dtype)
        if self.chance(0.1):
            given.reshape(-1)[self.rng.integers(given.size)] = self.one(np.nan, np.inf)
        mask = self.feed(given, 0.2)
        return self("Add", *((scores, mask) if self.chance(0.7) else (mask, scores)))

    def model(self, y: str) -> bytes:
        inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                  for n, a in self.feeds.items()]
        output = helper.make_tensor_value_info(y, helper.np_dtype_to_tensor_dtype(self.dtype), None)
        graph = helper.make_graph(self.nodes, "parts", inputs, [output], self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        raw: bytes = made.SerializeToString()
        return raw


def attention(seed: int, types: tuple[Any, ...] = tuple(TYPES), most: int = 40
              ) -> tuple[bytes, dict[str, np.ndarray], np.dtype[Any]]:
    """softmax(q k' * scale + masks) v, where the softmax may be guarded against NaN, heads may be split from
    the last axis and merged again, shared, and behind earlier keys and values."""
    p = Parts(seed, types)
    batch, shared, group, size = p.one(1, 2), p.one(1, 2, 3), p.one(1, 1, 2), p.one(4, 8, 20)
    length, total = (min(p.one(1, 2, 3, 5, 17, 40), most) for _ in range(2))
    heads, flat, past = shared * group, p.chance(0.5), p.one(0, 0, 0, 3) * (total > 3)
    new, wide = total - past, p.one(size, size, 5)

    def rows(count: int, of: int, width: int) -> str:
        if not flat:
            return p.feed(p.numbers(batch, of, count, width))
        x = p("Reshape", p.feed(p.numbers(batch, count, of * width)), p.constant([0, 0, of, width], np.int64))
        return p("Transpose", x, perm=[0, 2, 1, 3])

    q, k, v = rows(length, heads, size), rows(new, shared, size), rows(new, shared, wide)
    if past:
        k = p("Concat", p.feed(p.numbers(batch, shared, past, size)), k, axis=2)
        v = p("Concat", p.feed(p.numbers(batch, shared, past, wide)), v, axis=-2)
    if group > 1:
        k, v = (p("Reshape", p("Expand", p("Unsqueeze", x, p.constant([2], np.int64)),
                               p.constant([batch, shared, group, total, n], np.int64)),
                  p.constant([batch, heads, total, n], np.int64)) for x, n in ((k, size), (v, wide)))
    before = p.chance(0.3)
    if before:
        q = p("Mul", q, p.constant(0.5))
    scores = p("MatMul", q, p("Transpose", k, perm=[0, 1, 3, 2]))
    if not before and p.chance(0.8):
        scores = p("Mul", scores, p.constant(0.5)) if p.chance(0.5) else p("Div", scores, p.constant(3.0))
    for _ in range(p.one(0, 1, 1, 1, 2)):
        scores = p.masked(scores, (batch, heads, length, total))
    weights = p("Softmax", scores, axis=-1)
    if p.chance(0.2):
        weights = p("Where", p("IsNaN", weights), p.constant(0), weights)
    y = p("MatMul", weights, v)
    if flat:
        y = p("Transpose", y, perm=[0, 2, 1, 3])
        y = p("Reshape", y, p.constant([0, 0, heads * wide], np.int64))
    return p.model(y), p.feeds, p.dtype
