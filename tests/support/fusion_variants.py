"""Exporters' spellings of attention, normalization, activations and rotary positions, each with random
deviations: another constant, another axis, an intermediate that is read elsewhere or is an output, masks of
every shape.

`python tests/support/fusion_variants.py 1000` compares level 99 with level 0 on a thousand of each.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from support_graphs import Net

import orthrus
from fuzz.graphs import opened
from orthrus import knobs
from orthrus.ir import Value
from orthrus.load import save

F = np.float32
SIZES = {"N": 2, "S": 3, "P": 2, "K": 5, "one": 1, "B": 1}
LOW = float(np.finfo(F).min)


class Variant:
    """A net in the making, its feeds, and the draws."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.net = Net(self.r.choice([18, 20, 21, 23]))
        self.feeds: dict[str, np.ndarray] = {}
        self.kept: list[Value] = []
        self.dtype: Any = self.r.choice([F, F, F, np.float64])
        self.odd = self.r.random() < 0.4

    def input(self, name: str, *dims: Any, array: np.ndarray | None = None) -> Value:
        shape = [SIZES.get(d, d) for d in dims]
        array = self.rng.normal(size=shape).astype(self.dtype) if array is None else array
        self.feeds[name] = array
        return self.net.input(name, *dims, dtype=array.dtype)

    def const(self, *shape: int) -> Value:
        return self.net.constant(self.rng.normal(size=shape).round(2).astype(self.dtype))

    def number(self, value: float) -> Value:
        """The number, at times of a higher rank, at times a different one."""
        if self.odd and self.r.random() < 0.1:
            value *= self.r.choice([1.01, 2.0, 0.99])
        shape = self.r.choice([(), (), (), (1,), (1, 1), (1, 1, 1)] if self.odd else [(), (1,)])
        return self.net.constant(np.full(shape, value, self.dtype))

    def ints(self, *values: int) -> Value:
        return self.net.constant(np.array(values, np.int64))

    def see(self, value: Value) -> Value:
        """The value; now and then it is read elsewhere or is an output."""
        if self.odd and self.r.random() < 0.08:
            self.kept.append(value if self.r.random() < 0.5 else self.net.Neg(value))
        return value

    def one(self, *options: Any) -> Any:
        return self.r.choice(options)

    def oddly(self, usual: Any, *others: Any) -> Any:
        return self.r.choice(others) if self.odd and self.r.random() < 0.1 else usual


def mask(v: Variant, scores: Value, rank: int, batch: Any, length: Any, keys: Any) -> Value:
    """`scores` with a mask of one of many shapes, declared fully, by other names or not at all."""
    n, r = v.net, v.r
    shape = v.one(
        (1, 1, 1, keys),
        (batch, 1, 1, keys),
        (batch, 1, length, keys),
        (length, keys),
        (keys,),
        (batch, 1, length, 1),
        (1, 1, length, keys),
        (batch, v.one(1, 2), length, keys),
        (1, 1, 1, 1),
        (length, 1),
    )
    if rank == 3:
        shape = v.one(
            (batch, length, keys), (batch, 1, keys), (length, keys), (keys,), (1, 1, keys), (batch, length, 1)
        )
    sizes = [SIZES.get(d, d) for d in shape]
    closed = v.rng.random(sizes) < 0.4
    if r.random() < 0.7:
        closed[..., :1] = False
    elif closed.ndim > 1:
        closed[..., 0, :] = True
    declared = [d if r.random() < 0.6 else v.one(None, f"m{i}", SIZES.get(d, d)) for i, d in enumerate(shape)]
    declared = [
        d if isinstance(d, str) or d is None else "unsaid" if d == 1 and r.random() < 0.3 else d
        for d in declared
    ]
    kind = v.one("add", "add", "where", "where not", "computed")
    least = v.one(-1e4, LOW, -np.inf, -1e9, -1e30)
    if kind == "computed":
        keep = v.input("keep", *declared, array=(~closed).astype(v.dtype))
        return n.Add(
            scores, n.Mul(n.Sub(n.constant(np.ones((), v.dtype)), keep), n.constant(np.array(-1e4, v.dtype)))
        )
    if kind == "add":
        given = np.where(closed, least, 0).astype(v.dtype)
        made = v.input("mask", *declared, array=given) if r.random() < 0.7 else n.constant(given)
        return n.Add(*r.sample([scores, made], 2))
    array = closed if kind == "where not" else ~closed
    test = v.input("keep", *declared, array=array) if r.random() < 0.7 else n.constant(array)
    number = n.constant(np.array(least, v.dtype))
    return n.Where(test, number, scores) if kind == "where not" else n.Where(test, scores, number)


def attention(v: Variant) -> list[Value]:
    n, r = v.net, v.r
    batch, length, size = v.one("N", 2, "B", 1), v.one("S", 3), 4
    heads = v.one(2, 4)
    past = v.one(None, None, None, "P", 2)
    flat = r.random() < 0.2
    keys = length if past is None else SIZES.get(length, length) + 2 if r.random() < 0.5 else "K"
    source = length
    if past is None and r.random() < 0.3:
        source = keys = v.one("P", 2, "one", 1)
    x = v.input("x", batch, length, heads * size)
    context = x if source == length else v.input("context", batch, source, heads * size)

    def split(y: Value, count: int = heads) -> Value:
        lead = v.one((0, 0, count, size), (0, -1, count, size), (SIZES.get(batch, batch), -1, count, size))
        y = n.Reshape(v.see(y), v.ints(*lead))
        return v.see(n.Transpose(y, perm=[0, 2, 1, 3]))

    shared = v.one(1, 1, 2)
    q, k, w = (
        v.const(heads * size, heads * size),
        v.const(heads * size, heads * size // shared),
        v.const(heads * size, heads * size // shared),
    )
    q, k, w = n.MatMul(x, q), n.MatMul(context, k), n.MatMul(context, w)
    if flat:
        if shared > 1:
            return [q, k, w]
    else:
        q, k, w = split(q), split(k, heads // shared), split(w, heads // shared)
        if past is not None:
            pk, pv = (v.input(name, batch, heads // shared, past, size) for name in ("pk", "pv"))
            k, w = n.Concat(pk, k, axis=2), n.Concat(pv, w, axis=2)
            if r.random() < 0.5:
                v.kept += [k, w]
        if shared > 1:
            k, w = (repeated(v, y, heads // shared, shared, size) for y in (k, w))
    rank = 3 if flat else 4
    before = r.random() < 0.3
    factor = v.number(v.oddly(0.5, -0.5, 1.0))
    if before:
        q = n.Mul(q, factor)
        if r.random() < 0.5:
            k = n.Mul(k, factor)
    swap = [*range(rank - 2), rank - 1, rank - 2]
    kt = n.Transpose(k, perm=swap if not v.odd or r.random() < 0.9 or rank == 3 else [0, 1, 3, 2])
    scores = v.see(n.MatMul(q, v.see(kt)))
    if not before and r.random() < 0.8:
        scores = v.see(n.Mul(scores, factor) if r.random() < 0.5 else n.Div(scores, v.number(2.0)))
    for _ in range(v.one(0, 1, 1, 1, 2)):
        if "keep" not in v.feeds and "mask" not in v.feeds:
            scores = v.see(mask(v, scores, rank, batch, length, keys))
    p = n.Softmax(scores, axis=v.oddly(v.one(-1, rank - 1), -2, 1))
    if r.random() < 0.2:
        p = n.Where(n.IsNaN(p), n.constant(np.array(0, v.dtype)), p)
    y = v.see(n.MatMul(v.see(p), w))
    if not flat and r.random() < 0.7:
        y = n.Transpose(y, perm=v.oddly([0, 2, 1, 3], [0, 1, 2, 3]))
        y = n.Reshape(
            y,
            v.ints(
                *v.one(
                    (0, 0, heads * size), (0, -1, heads * size), (SIZES.get(batch, batch), -1, heads * size)
                )
            ),
        )
    return [y]


def repeated(v: Variant, y: Value, heads: int, times: int, size: int) -> Value:
    n = v.net
    wide = n.Unsqueeze(y, v.ints(2))
    if v.r.random() < 0.3:
        wide = n.Tile(wide, v.ints(1, 1, times, 1, 1))
    else:
        dims = n.Concat(n.Shape(y, start=0, end=1), v.ints(heads, times), n.Shape(y, start=2), axis=0)
        wide = n.Expand(wide, dims)
    return n.Reshape(wide, v.ints(0, heads * times, -1, size))


def normalization(v: Variant) -> list[Value]:
    n, r = v.net, v.r
    dims = [v.one("N", 2, "B"), v.one("S", 3, 1), v.oddly(4, 1, "K")]
    width = SIZES.get(dims[2], dims[2])
    x = v.input("x", *dims)
    if r.random() < 0.4:
        other = v.oddly(dims, [1, *dims[1:]], [width], [1])
        x = v.see(n.Add(*r.sample([x, v.input("y", *other)], 2)))
        if r.random() < 0.3:
            v.kept.append(x)
    axes = v.oddly(v.one((-1,), (2,)), (1,), (1, 2), (0,))
    mean_axes, var_axes = v.ints(*axes), v.ints(*v.oddly(axes, (-1,), (1,)))
    rms = r.random() < 0.4
    mean = None if rms else v.see(n.ReduceMean(x, mean_axes, keepdims=1) if v.net.opset >= 18 else x)
    d = x if mean is None else v.see(n.Sub(x, mean))
    square = n.Pow(d, v.number(v.oddly(2.0, 3.0))) if r.random() < 0.5 else n.Mul(d, v.oddly(d, x))
    var = v.see(n.ReduceMean(square, var_axes, keepdims=1))
    eps = n.constant(np.full(v.oddly((), (1,), (1, 1), (width,)), v.one(1e-5, 1e-2), v.dtype))
    s = n.Add(*r.sample([var, eps], 2))
    how = v.one("div", "reciprocal", "one", "pow")
    if how == "pow":
        y = n.Mul(d, n.Pow(s, v.number(v.oddly(-0.5, -0.4))))
    else:
        s = v.see(n.Sqrt(s))
        y = (
            n.Div(d, s)
            if how == "div"
            else n.Mul(d, n.Reciprocal(s) if how == "reciprocal" else n.Div(v.number(1), s))
        )
    y = v.see(y)
    if r.random() < 0.8:
        scale = v.const(*v.oddly((width,), (1,), (1, width), (SIZES.get(dims[1], dims[1]), 1), (1, 1, width)))
        if v.odd and r.random() < 0.3:
            scale = v.input("g", width)
        y = v.see(n.Mul(*r.sample([y, scale], 2)))
        if r.random() < 0.8:
            y = n.Add(*r.sample([y, v.const(*v.oddly((width,), (1,), (1, width)))], 2))
    if r.random() < 0.3:
        y = n.MatMul(y, n.Transpose(y, perm=[0, 2, 1]))
    return [y]


def activation(v: Variant) -> list[Value]:
    n, r = v.net, v.r
    x = v.input("x", *v.one(("N", "S", 4), (2, 3), ("K",), ()))
    kind = v.one(
        "erf",
        "tanh",
        "quick",
        "swish",
        "hard",
        "hard swish",
        "softplus",
        "mish",
        "softmax",
        "clips",
        "relu clip",
        "div",
    )

    def times(a: Value, b: Value) -> Value:
        return v.see(n.Mul(*r.sample([a, b], 2)))

    def plus(a: Value, b: Value) -> Value:
        return v.see(n.Add(*r.sample([a, b], 2)))

    def half(e: Value) -> Value:
        order = r.randrange(4)
        if order == 0:
            return times(times(x, e), v.number(0.5))
        if order == 1:
            return times(x, times(e, v.number(0.5)))
        if order == 2:
            return times(times(x, v.number(0.5)), e)
        return n.Div(times(x, e), v.number(2))

    if kind == "erf":
        inner = n.Div(x, v.number(math.sqrt(2))) if r.random() < 0.5 else times(x, v.number(math.sqrt(0.5)))
        return [half(plus(v.see(n.Erf(inner)), v.number(1)))]
    if kind == "tanh":
        square = n.Mul(x, x) if r.random() < 0.5 else n.Pow(x, v.number(2))
        cube = n.Pow(x, v.number(3)) if r.random() < 0.5 else times(x, square)
        arc = times(plus(x, times(cube, v.number(0.044715))), v.number(math.sqrt(2 / math.pi)))
        return [half(plus(n.Tanh(arc), v.number(1)))]
    if kind in ("quick", "swish"):
        return [times(x, n.Sigmoid(times(x, v.number(1.702)) if kind == "quick" else x))]
    if kind in ("hard", "hard swish"):
        low, high = (n.constant(np.array(b, v.dtype)) for b in (v.oddly(0, 1), v.oddly(6, 5)))
        y = v.see(n.Clip(plus(x, v.number(3)), low, high))
        y = times(x, y) if kind == "hard swish" else y
        return [n.Div(y, v.number(6)) if r.random() < 0.5 else times(y, v.number(1 / 6))]
    if kind in ("softplus", "mish"):
        y = v.see(n.Log(plus(n.Exp(x), v.number(1)))) if r.random() < 0.5 else n.Softplus(x)
        return [y if kind == "softplus" else times(x, n.Tanh(y))]
    if kind == "softmax" and len(x.shape):
        axis = r.randrange(-len(x.shape), len(x.shape))
        e = v.see(n.Exp(v.see(n.Sub(x, n.ReduceMax(x, v.ints(axis), keepdims=1)))))
        return [n.Div(e, n.ReduceSum(e, v.ints(v.oddly(axis, 0)), keepdims=1))]
    if kind == "div":
        return [times(n.Div(v.number(1), plus(n.Abs(x), v.number(1))), x)]
    bounds = [n.constant(np.array(b, v.dtype)) for b in v.one((0, 6), (-1, 1), (1, 3), (-3, -1), (2, 1))]
    y = n.Clip(x, *bounds)
    if kind == "clips":
        return [
            n.Clip(
                v.see(y),
                *(n.constant(np.array(b, v.dtype)) for b in v.one((0, 6), (-1, 1), (1, 3), (-3, -1))),
            )
        ]
    return [n.Relu(v.see(y)) if r.random() < 0.5 else n.Clip(v.see(n.Relu(x)), *bounds)]


def rotary(v: Variant) -> list[Value]:
    n, r = v.net, v.r
    size = v.oddly(4, 6, 2)
    half = v.oddly(size // 2, 1)
    batch, heads, length = v.one("N", 2, "B"), v.one(2, 1), v.one("S", 3)
    pairs, by_head = r.random() < 0.4, r.random() < 0.7
    x = v.input("x", batch, *((heads, length) if by_head else (length, heads)), size)
    if r.random() < 0.3:
        a, b = parted(v, x, size, half, pairs)
        angles = v.input("angles", v.one(1, batch), *((1, length) if by_head else (length, 1)), size // 2)
        cos, sin = n.Cos(angles), v.see(n.Sin(angles))
        first = v.oddly(n.Sub, n.Add)(n.Mul(*r.sample([a, cos], 2)), n.Mul(*r.sample([b, sin], 2)))
        second = n.Add(*r.sample([n.Mul(*r.sample([b, cos], 2)), n.Mul(a, sin)], 2))
        return [joined(v, first, second, size, v.oddly(pairs, not pairs))]
    cos, sin = angles_twice(v, batch, length, size, by_head, v.oddly(pairs, not pairs))
    a, b = parted(v, x, size, half, pairs)
    turned = joined(v, *v.oddly((n.Neg(b), a), (a, n.Neg(b)), (n.Neg(a), b)), size, v.oddly(pairs, not pairs))
    y = n.Add(*r.sample([n.Mul(*r.sample([x, cos], 2)), n.Mul(*r.sample([v.see(turned), sin], 2))], 2))
    return [n.MatMul(y, n.Transpose(y, perm=[0, 1, 3, 2])), y] if r.random() < 0.3 else [y]


def angles_twice(v: Variant, batch: Any, length: Any, size: int, by_head: bool, pairs: bool
                 ) -> tuple[Value, Value]:
    """cos and sin that hold each angle twice, or nearly so."""
    n, r = v.net, v.r
    first = v.one(1, 1, SIZES.get(batch, batch))
    if r.random() < 0.5:
        long = SIZES.get(length, length)
        angles = v.rng.normal(size=(first, *((1, long) if by_head else (long, 1)), size // 2))
        both = angles.repeat(2, -1) if pairs else np.concatenate([angles, angles], -1)
        if v.odd and r.random() < 0.2:
            both = v.rng.normal(size=both.shape)
        return n.constant(np.cos(both).astype(v.dtype)), n.constant(np.sin(both).astype(v.dtype))
    freqs = v.input("freqs", first if first == 1 else batch, length, size // 2)
    if pairs:
        wide = n.Expand(n.Unsqueeze(freqs, v.ints(3)), v.ints(1, 1, 1, 2))
        both = n.Reshape(v.oddly(wide, n.Transpose(wide, perm=[0, 1, 3, 2])), v.ints(0, 0, size))
    else:
        both = n.Concat(freqs, v.oddly(freqs, n.Neg(freqs)), axis=-1)
    at = v.ints(1 if by_head else 2)
    return n.Unsqueeze(n.Cos(both), at), n.Unsqueeze(n.Sin(both), at)


def parted(v: Variant, x: Value, size: int, half: int, pairs: bool) -> tuple[Value, Value]:
    """The first and the second features of every pair."""
    n, far = v.net, v.one(size, 1 << 62)
    if pairs and v.r.random() < 0.4:
        apart = n.Reshape(x, v.ints(0, 0, 0, size // 2, 2))
        a, b = (n.Gather(apart, n.constant(np.array(i, np.int64)), axis=-1) for i in (0, 1))
        return v.oddly((a, b), (b, a))
    if pairs:
        a, b = (n.Slice(x, v.ints(i), v.ints(far), v.ints(-1), v.ints(2)) for i in v.oddly((0, 1), (1, 0)))
        return a, b
    if v.r.random() < 0.4:
        a, b = n.Split(x, *[v.ints(half, size - half)], axis=v.one(-1, 3), outputs=2)
        return a, b
    return (n.Slice(x, v.ints(0), v.ints(half), v.ints(v.one(3, -1))),
            n.Slice(x, v.ints(half), v.ints(far), v.ints(v.one(3, -1)), v.ints(1)))


def joined(v: Variant, a: Value, b: Value, size: int, pairs: bool) -> Value:
    n = v.net
    if not pairs:
        return n.Concat(a, b, axis=-1)
    return n.Reshape(n.Concat(n.Unsqueeze(a, v.ints(-1)), n.Unsqueeze(b, v.ints(4)), axis=v.one(-1, 4)),
                     v.ints(0, 0, 0, size))


VARIANTS: dict[str, Callable[[Variant], list[Value]]] = {
    f.__name__: f for f in (attention, normalization, activation, rotary)
}


def difference(
    kind: str, seed: int, peer: Any = None, path: str | None = None
) -> tuple[str | None, list[str]]:
    """How level 99 differs from level 0, None where it does not, and the passes that had something to do.

    Where level 0 gives NaN, or an error, nothing is asked. `path` takes the optimized model, which has to
    agree too.
    """
    v = Variant(seed)
    made: dict[Value, None] = dict.fromkeys([*VARIANTS[kind](v), *v.kept])
    values = [y if y.node is not None else v.net.Identity(y) for y in made]
    v.net.graph.info.ir_version = 10
    raw = save(v.net.outputs(*values))
    try:
        expected = opened(orthrus, raw, "ORT_DISABLE_ALL").run(None, v.feeds)
    except Exception:
        return None, []
    try:
        session = opened(orthrus, raw, "ORT_ENABLE_ALL", path)
        passes = [e.name for e in session.explain().passes if e.count] if hasattr(session, "explain") else []
        results = {"level 99": session.run(None, v.feeds)}
        if path is not None:
            results["saved"] = opened(orthrus, path, "ORT_DISABLE_ALL").run(None, v.feeds)
            if peer is not None:
                try:
                    results["saved, onnxruntime"] = opened(peer, path, "ORT_DISABLE_ALL").run(None, v.feeds)
                except Exception as error:
                    if "NOT_IMPLEMENTED" not in str(error):
                        return f"saved, onnxruntime: {str(error)[:300]}", passes
    except Exception as error:
        return f"{type(error).__name__}: {error}", []
    for where, got in results.items():
        for a, b in zip(got, expected, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"{where}: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}", passes
            # a saved epsilon is of single precision
            exact = 1e-9 if where == "level 99" else 1e-7
            unit = (1e-4 if a.dtype == F else exact) * max(1.0, float(np.nanmax(np.abs(b), initial=0)))
            with np.errstate(all="ignore"):
                wrong = ~((np.abs(a - b) <= unit) | (a == b) | np.isnan(b))
            if np.any(wrong):
                return (
                    f"{where}: {int(wrong.sum())} of {wrong.size}, {a[wrong][0]!r}, expected {b[wrong][0]!r}",
                    passes,
                )
    return None, passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--kind", default="")
    args = parser.parse_args()
    for kind in [args.kind] if args.kind else VARIANTS:
        fired: dict[str, int] = {}
        bad = 0
        for seed in range(args.start, args.start + args.count):
            with knobs.setting(CHECK=1):
                found, passes = difference(kind, seed)
            for name in passes:
                fired[name] = fired.get(name, 0) + 1
            if found:
                bad += 1
                print(f"{kind} {seed}: {found[:300]}")
        print(f"{kind}: {bad} of {args.count}; {fired}")


if __name__ == "__main__":
    main()
